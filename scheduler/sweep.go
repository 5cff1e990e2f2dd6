package scheduler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Setting is a circumstance under which a sweep runs its requests.
type Setting string

// The settings. Each is compared with itself across levels.
const (
	// SettingCold runs every request as its session's first turn.
	SettingCold Setting = "cold"
	// SettingHot runs every request as two turns of half the tokens each. After the first its KV is saved, and the second,
	// which is measured, is restored from it.
	SettingHot Setting = "hot"
	// SettingCancelledNeighbour is SettingCold beside one session more, which is cancelled in the middle of
	// its generation; a request takes its slot at once.
	SettingCancelledNeighbour Setting = "cancelled-neighbour"
	// SettingAfresh is what SettingHot is compared with: the same two turns, of which the second finds nothing kept and evaluates
	// its whole prompt. It runs beside SettingHot, at the lowest level only.
	SettingAfresh Setting = "afresh"
)

// Settings lists every setting that can be asked for, in the order in which a sweep runs them.
func Settings() []Setting { return []Setting{SettingCold, SettingHot, SettingCancelledNeighbour} }

// EngineFactory makes a fresh engine with at least level slots, and what closes it.
type EngineFactory func(level int) (engine Engine, closeEngine func(), err error)

// SweepOptions say what Sweep runs.
type SweepOptions struct {
	// Requests are run at every level. Each has a Prompt of its own, a Session that no other has, and at
	// least 2 new tokens. Turn, Epoch, Keep and the like are the sweep's own.
	Requests []Request
	Levels   []int     // sessions at once; sorted and made unique; nil is 1, 2, 4, 8
	Settings []Setting // nil is all; the cold one always runs
	// Progress, if set, is called before each run.
	Progress func(setting Setting, level int)
	Clock    func() time.Time // nil is time.Now
}

func defaultLevels() []int { return []int{1, 2, 4, 8} }

// Sweep runs the same requests at each level, with a fresh engine for each level and setting, and reports how much
// batching gains and whether every session came out the same as at the lowest level. A request that is refused or
// that the engine fails is an error; a difference is none, but is what the report is about.
func Sweep(ctx context.Context, factory EngineFactory, opts SweepOptions) (*SweepReport, error) {
	opts, err := opts.complete()
	if err != nil {
		return nil, fmt.Errorf("sweep: %w", err)
	}
	var all []settingRuns
	for _, setting := range opts.runs() {
		runs := settingRuns{setting: setting}
		for _, level := range opts.levelsOf(setting) {
			if opts.Progress != nil {
				opts.Progress(setting, level)
			}
			run, err := sweepOnce(ctx, factory, opts, setting, level)
			if err != nil {
				return nil, fmt.Errorf("sweep: %s at level %d: %w", setting, level, err)
			}
			runs.levels = append(runs.levels, run)
		}
		all = append(all, runs)
	}
	return compareRuns(opts.Requests, all), nil
}

// runs are the settings to run.
func (o SweepOptions) runs() []Setting {
	if slices.Contains(o.Settings, SettingHot) {
		return append(slices.Clone(o.Settings), SettingAfresh)
	}
	return o.Settings
}

// levelsOf are the levels at which a setting runs.
func (o SweepOptions) levelsOf(setting Setting) []int {
	if setting == SettingAfresh {
		return o.Levels[:1]
	}
	return o.Levels
}

// complete fills in defaults and says what cannot be swept.
func (o SweepOptions) complete() (SweepOptions, error) {
	if len(o.Levels) == 0 {
		o.Levels = defaultLevels()
	}
	o.Levels = slices.Compact(slices.Sorted(slices.Values(o.Levels)))
	if o.Levels[0] < 1 {
		return o, fieldError("levels", o.Levels, "at least 1 each")
	}
	if o.Settings == nil {
		o.Settings = Settings()
	}
	for _, setting := range o.Settings {
		if !slices.Contains(Settings(), setting) {
			return o, fieldError("settings", fmt.Sprintf("%q", setting), "some of %v", Settings())
		}
	}
	wanted := o.Settings
	o.Settings = slices.DeleteFunc(Settings(), func(s Setting) bool {
		return s != SettingCold && !slices.Contains(wanted, s)
	})
	if o.Clock == nil {
		o.Clock = time.Now
	}
	return o, checkSweepRequests(o.Requests)
}

func checkSweepRequests(requests []Request) error {
	if len(requests) == 0 {
		return errors.New("no requests; give at least one")
	}
	seen := make(map[string]bool)
	for _, req := range requests {
		switch {
		case req.Tenant == neighbourTenant:
			return fieldError("tenant", fmt.Sprintf("%q", req.Tenant), "another: this one is the sweep's own")
		case seen[req.Session]:
			return fieldError("session", fmt.Sprintf("%q twice", req.Session), "another for each request")
		case req.Tokenize != nil || req.Stop != nil || len(req.Replay) > 0:
			return fmt.Errorf("request %q has Tokenize, Stop or Replay; give it a Prompt only", req.Session)
		case req.MaxNewTokens < 2:
			return fieldError("max_new_tokens", req.MaxNewTokens, "at least 2 in a sweep (session %q)", req.Session)
		}
		seen[req.Session] = true
	}
	return nil
}
