package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
)

// comments are the doc comments of types, under "Type", and of fields, under "Type.Field".
type comments map[string]string

func readComments(folder string) (comments, error) {
	paths, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil {
		return nil, err
	}
	all := comments{}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		for _, decl := range file.Decls {
			if gen, ok := decl.(*ast.GenDecl); ok {
				all.addTypes(gen)
			}
		}
	}
	return all, nil
}

func (c comments) addTypes(gen *ast.GenDecl) {
	for _, spec := range gen.Specs {
		t, ok := spec.(*ast.TypeSpec)
		if !ok {
			continue
		}
		if t.Doc == nil {
			t.Doc = gen.Doc
		}
		c[t.Name.Name] = line(t.Doc)
		s, ok := t.Type.(*ast.StructType)
		if !ok {
			continue
		}
		for _, field := range s.Fields.List {
			text := strings.TrimSpace(line(field.Doc) + " " + line(field.Comment))
			for _, name := range field.Names {
				c[t.Name.Name+"."+name.Name] = text
			}
		}
	}
}

// line is a comment on one line.
func line(group *ast.CommentGroup) string {
	if group == nil {
		return ""
	}
	return strings.Join(strings.Fields(group.Text()), " ")
}
