package llama_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/meshnet/node/llama"
)

// hostileTemplates never end, or not within any memory.
var hostileTemplates = []struct{ name, template, reason string }{
	{"loop", `{% for i in range(1000000) %}{% for j in range(1000000) %}{% endfor %}{% endfor %}`, "it takes too long"},
	{"list", `{{ range(1000000000) }}`, "it takes too "},
	{"recursion", `{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}`, "it takes too "},
	{"doubling", `{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}`, "it takes too "},
	{"repetition", `{{ 'x' * 100000000000 }}`, "it takes too "},
}

// Where the engine, which tries a template out, gets over its want of memory, conversations are refused.
func TestATemplateThatDoesNotEndIsNoChatOrTakesNoMessages(t *testing.T) {
	for _, c := range hostileTemplates {
		t.Run(c.name, func(t *testing.T) {
			chat, err := modelWithTemplate(t, "", c.template).NewChat()
			if err != nil {
				if !errors.Is(err, llama.ErrNoChat) || !strings.Contains(err.Error(), c.reason) {
					t.Errorf("%v; want ErrNoChat and %q", err, c.reason)
				}
				return
			}
			defer chat.Free()
			_, err = chat.Tokenize(t.Context(), 1<<20, say("user: a"))
			var refused *llama.ConversationError
			if !errors.As(err, &refused) || !strings.Contains(refused.Reason, c.reason) {
				t.Errorf("%v; want a ConversationError with %q", err, c.reason)
			}
		})
	}
}

func TestATemplateThatDoesNotEndForSomeMessagesRefusesThemAndTakesTheNext(t *testing.T) {
	for _, c := range hostileTemplates {
		t.Run(c.name, func(t *testing.T) {
			m := modelWithTemplate(t, "", `{% if messages[0].content == 'evil' %}`+c.template+`{% endif %}{{ messages[0].content }}`)
			chat := newChat(t, m)
			_, err := chat.Tokenize(t.Context(), 1<<20, say("user: evil"))
			var refused *llama.ConversationError
			if !errors.As(err, &refused) || refused.Field != "messages" || !strings.Contains(refused.Reason, c.reason) {
				t.Errorf("%v; want a ConversationError of messages with %q", err, c.reason)
			}
			equal(t, "tokens", chatTokens(t, chat, say("user: good")), tokenize(t, m, "good", true))
		})
	}
}

func TestALostTemplateProcessIsNoFaultOfTheConversation(t *testing.T) {
	m := chatModel(t, "chatml")
	chat := newChat(t, m)
	want := chatTokens(t, chat, say("user: a"))
	llama.KillTemplates(chat)
	for range 2 { // as many as may run at once: only those that ran are lost
		if tokens, err := chat.Tokenize(t.Context(), 1<<20, say("user: a")); err == nil {
			equal(t, "tokens", tokens, want)
		} else if !errors.Is(err, llama.ErrChatLost) {
			t.Errorf("%v; want ErrChatLost", err)
		}
	}
	equal(t, "tokens", chatTokens(t, chat, say("user: a")), want)
}

func TestRenderingEndsWithItsContext(t *testing.T) {
	chat := newChat(t, modelWithTemplate(t, "", `{% if messages[0].content == 'evil' %}`+hostileTemplates[0].template+`{% endif %}`))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := chat.Tokenize(ctx, 1<<20, say("user: evil")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v; want context.DeadlineExceeded", err)
	}
}

func TestWhatATemplateRaisesIsToldAsText(t *testing.T) {
	chat := newChat(t, modelWithTemplate(t, "", `{% if messages[0].content == 'é' %}{{ raise_exception('no ' + messages[0].content[0]) }}{% endif %}`))
	_, err := chat.Tokenize(t.Context(), 1<<20, say("user: é"))
	var refused *llama.ConversationError
	if !errors.As(err, &refused) || refused.Reason != "chat template: Jinja Exception: no \ufffd" {
		t.Errorf("%v; want a ConversationError with the reason that the template gave", err)
	}
}

func BenchmarkRender(b *testing.B) {
	chat := newChat(b, chatModel(b, "chatml"))
	for b.Loop() {
		if _, err := chat.Tokenize(b.Context(), 1<<20, say("user: Why is the sky blue?")); err != nil {
			b.Fatal(err)
		}
	}
}
