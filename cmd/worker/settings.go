package main

import (
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// settings gives a flag that the command line leaves out its value: from an environment variable, else from the file
// of --config, else none, and the default holds. Variable and key have the flag's name, or that of its setting tag
// where flags of two commands share a name and mean something else. kong's own variables would rank below a file.
type settings struct {
	file *configFile // nil without --config
}

// variablePrefix begins the environment variables of flags.
const variablePrefix = "MESHNET_"

// settingName is what a flag is called apart from the command line; "" for one that asks for something at once,
// as --help does.
func settingName(flag *kong.Flag) string {
	name := flag.Tag.Get("setting")
	switch {
	case flag.Name == "help" || name == "-":
		return ""
	case name != "":
		return name
	default:
		return flag.Name
	}
}

// variable is a flag's environment variable, or "".
func variable(flag *kong.Flag) string {
	name := settingName(flag)
	if name == "" {
		return ""
	}
	return variablePrefix + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

// BeforeResolve reads the file of --config. It is called by the command-line parser.
func (c *commands) BeforeResolve(parsed *kong.Context) error {
	i := slices.IndexFunc(parsed.Model.Flags, func(f *kong.Flag) bool { return f.Name == configFlag })
	flag := parsed.Model.Flags[i]
	path, from := parsed.FlagValue(flag).(string), "--"+configFlag
	if path == "" {
		path, from = os.Getenv(variable(flag)), variable(flag)
	}
	s := &settings{}
	if path != "" {
		var err error
		if s.file, err = readConfig(path, parsed.Model); err != nil {
			return fmt.Errorf("%s: %w", from, err)
		}
	}
	parsed.AddResolver(s)
	return nil
}

// Validate implements kong.Resolver. The file was checked when it was read.
func (s *settings) Validate(*kong.Application) error { return nil }

// Resolve implements kong.Resolver.
func (s *settings) Resolve(parsed *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	if settingName(flag) == "" {
		return nil, nil
	}
	text, from := os.Getenv(variable(flag)), variable(flag)
	if text == "" {
		if s.file == nil || flag.Name == configFlag {
			return nil, nil
		}
		entry := s.file.entry(parsed.Selected(), flag)
		if entry == nil {
			return nil, nil
		}
		from = entry.where
		var err error
		if text, err = entry.text(flag); err != nil {
			return nil, fmt.Errorf("%w (%s)", err, from)
		}
	}
	if err := accepts(flag, text); err != nil {
		return nil, fmt.Errorf("%w (%s)", err, from)
	}
	return text, nil
}

// accepts says whether a flag takes a text, so that an error can name where the text is from.
func accepts(flag *kong.Flag, text string) error {
	scan := kong.Scan().PushTyped(text, kong.FlagValueToken)
	scratch := reflect.New(flag.Target.Type()).Elem()
	if scratch.Kind() == reflect.Pointer {
		scratch.Set(reflect.New(scratch.Type().Elem()))
	}
	if err := flag.Mapper.Decode(&kong.DecodeContext{Value: flag.Value, Scan: scan}, scratch); err != nil {
		return err
	}
	if flag.Enum != "" && !slices.Contains(flag.EnumSlice(), text) {
		return fmt.Errorf("must be one of %s but is %q", strings.Join(flag.EnumSlice(), ", "), text)
	}
	return nil
}

// helpText is a flag's help with its default and its variable.
func helpText(value *kong.Value) string {
	if value.Flag == nil || variable(value.Flag) == "" {
		return value.Help
	}
	more := "$" + variable(value.Flag)
	switch {
	case value.Default == "":
	case value.Target.Kind() == reflect.String:
		more = fmt.Sprintf("default %q, %s", value.Default, more)
	default:
		more = fmt.Sprintf("default %s, %s", value.Default, more)
	}
	return strings.TrimSuffix(value.Help, ".") + " (" + more + ")."
}
