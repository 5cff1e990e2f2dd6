// Command docgen writes the JSON Schemas of the wire's messages, and an AsyncAPI document of the subjects they
// travel on, from the structs of package schemas and their comments.
//
//	docgen SOURCE-FOLDER TARGET-FOLDER
package main

import (
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: docgen SOURCE-FOLDER TARGET-FOLDER")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "docgen:", err)
		os.Exit(1)
	}
}

func run(source, target string) error {
	files, err := generate(source)
	if err != nil {
		return err
	}
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(target, name), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// generate makes every file: its name and its content.
func generate(source string) (map[string][]byte, error) {
	comments, err := readComments(source)
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	for _, t := range messages() {
		g := generator{comments: comments, defined: map[string]object{}}
		if files[t.Name()+".json"], err = g.message(t).indented(); err != nil {
			return nil, err
		}
	}
	files["asyncapi.json"], err = asyncAPI(comments).indented()
	return files, err
}
