package schemas_test

import (
	"errors"
	"fmt"

	"github.com/meshnet/node/schemas"
)

// A client encodes a request and knows where to publish it; a worker decodes it and checks that it came on the right subject.
func Example() {
	prompt := "Once upon a time"
	request := &schemas.Request{
		Tenant:       schemas.Must(schemas.ParseTenant("acme")),
		Session:      schemas.Must(schemas.ParseSession("story-1")),
		Turn:         1,
		Model:        schemas.Must(schemas.ParseModel("stories")),
		Nonce:        schemas.Must(schemas.ParseNonce("n-4711")),
		Prompt:       &prompt,
		MaxNewTokens: 64,
	}
	payload, err := schemas.Encode(request)
	if err != nil {
		fmt.Println(err)
		return
	}
	var mesh schemas.Prefix // the zero value is mesh.v1
	subject := mesh.Request(request.Model, schemas.AnyLane, request.Tenant)
	fmt.Println(subject, request.MsgID())

	got, err := schemas.Decode[schemas.Request](payload)
	if err != nil {
		fmt.Println(err)
		return
	}
	where, err := mesh.ParseRequest(subject)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(got.Agrees(where), *got.Prompt, got.Deadline())
	fmt.Println(mesh.Tokens(got.ID()))
	// Output:
	// mesh.v1.req.stories.any.acme acme/story-1/1/n-4711
	// <nil> Once upon a time 10m0s
	// mesh.v1.tok.acme.story-1.1
}

// Events are told apart by their type.
func ExampleDecodeEvent() {
	payload, err := schemas.Encode(&schemas.Tokens{Attempt: 1, Index: 3, TokenIDs: []int64{42, 7}, Text: " there was"})
	if err != nil {
		fmt.Println(err)
		return
	}
	event, err := schemas.DecodeEvent(payload)
	if err != nil {
		fmt.Println(err)
		return
	}
	switch e := event.(type) {
	case *schemas.Started:
		fmt.Println("from", e.ResumeIndex)
	case *schemas.Tokens:
		fmt.Printf("%d: %q\n", e.Index, e.Text)
	case *schemas.Keepalive:
	case *schemas.Final:
		fmt.Println(e.Reason)
	}
	// Output: 3: " there was"
}

// What is not valid is refused with the field's name.
func ExampleFieldError() {
	_, err := schemas.ParseSession("story.*")
	var field *schemas.FieldError
	if errors.As(err, &field) {
		fmt.Println(field.Field)
	}
	fmt.Println(err)
	// Output:
	// session
	// session is "story.*"; it must be 1 to 64 of the characters A-Z a-z 0-9 _ -
}
