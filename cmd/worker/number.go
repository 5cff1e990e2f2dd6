package main

import (
	"fmt"
	"reflect"
	"strconv"

	"github.com/alecthomas/kong"
)

// decimals has whole numbers read as people write them: 010 is ten. The parser's own way is Go's, and would cancel
// turn 8 instead of turn 10.
func decimals() kong.Option {
	return kong.OptionFunc(func(k *kong.Kong) error {
		for _, kind := range []reflect.Kind{reflect.Int, reflect.Int64, reflect.Uint64} {
			if err := kong.KindMapper(kind, kong.MapperFunc(decodeDecimal)).Apply(k); err != nil {
				return err
			}
		}
		return nil
	})
}

func decodeDecimal(ctx *kong.DecodeContext, target reflect.Value) error {
	var text string
	if err := ctx.Scan.PopValueInto("number", &text); err != nil {
		return err
	}
	bits := target.Type().Bits()
	if target.CanUint() {
		n, err := strconv.ParseUint(text, 10, bits)
		if err != nil {
			return fmt.Errorf("expected a valid %d bit uint but got %q", bits, text)
		}
		target.SetUint(n)
		return nil
	}
	n, err := strconv.ParseInt(text, 10, bits)
	if err != nil {
		return fmt.Errorf("expected a valid %d bit int but got %q", bits, text)
	}
	target.SetInt(n)
	return nil
}
