// Package scripts_test runs the build scripts against stand-ins for npm and uname: no network, no real
// cache. That a real llama.cpp can be made and linked is what every other test of the engine shows.
package scripts_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// sandbox is a folder with a PATH of few commands and a cache of its own.
type sandbox struct {
	t     *testing.T
	bin   string
	cache string
	env   []string
}

// commands are what the scripts call, besides npm and cmake.
var commands = []string{
	"awk", "base64", "bash", "cat", "cp", "cut", "dirname", "find", "flock", "git", "grep", "gzip", "head", "ldd", "ls", "mkdir",
	"mktemp", "mv", "od", "rm", "sed", "sha512sum", "sort", "tail", "tar", "touch", "tr", "uname",
}

func newSandbox(t *testing.T) *sandbox {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("the stand-ins are made for Linux")
	}
	s := &sandbox{t: t, bin: t.TempDir(), cache: t.TempDir()}
	for _, name := range commands {
		s.link(name)
	}
	s.fake("uname", `case $1 in -s) echo Linux ;; *) echo x86_64 ;; esac`)
	s.env = []string{"PATH=" + s.bin, "XDG_CACHE_HOME=" + s.cache, "HOME=" + s.cache}
	return s
}

// link puts an installed command on the PATH, if there is one.
func (s *sandbox) link(name string) {
	s.t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		return
	}
	if err := os.Symlink(path, filepath.Join(s.bin, name)); err != nil {
		s.t.Fatal(err)
	}
}

// fake puts a shell script on the PATH.
func (s *sandbox) fake(name, body string) {
	s.t.Helper()
	path := filepath.Join(s.bin, name)
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("#!"+filepath.Join(s.bin, "bash")+"\n"+body+"\n"), 0o755); err != nil {
		s.t.Fatal(err)
	}
}

// run returns both outputs of a script and whether it exited with 0. Later settings win.
func (s *sandbox) run(script string, env []string, args ...string) (stdout, stderr string, ok bool) {
	s.t.Helper()
	// Looking at the script makes it an input of the test: after a change no cached result is reported.
	if _, err := os.Stat(script); err != nil {
		s.t.Fatal(err)
	}
	command := exec.Command(filepath.Join(s.bin, "bash"), append([]string{script}, args...)...)
	command.Env = append(append([]string{}, s.env...), env...)
	var out, errs strings.Builder
	command.Stdout, command.Stderr = &out, &errs
	err := command.Run()
	return out.String(), errs.String(), err == nil
}

// leftovers lists the cache but for lock files, which stay.
func (s *sandbox) leftovers() []string {
	s.t.Helper()
	all, err := filepath.Glob(filepath.Join(s.cache, "meshnet/llama/*"))
	if err != nil {
		s.t.Fatal(err)
	}
	var left []string
	for _, path := range all {
		if !strings.HasSuffix(path, ".lock") {
			left = append(left, path)
		}
	}
	return left
}

func writeFile(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestWhatCannotBeMadeIsOneClearErrorAndLeavesNothing(t *testing.T) {
	cases := []struct {
		name  string
		env   []string
		npm   string // body of the npm on the PATH; none if empty
		uname string // body of uname, if not that of an x64 Linux
		bare  bool   // there is no compiler
		want  []string
	}{
		{name: "no compiler", npm: "exit 1", bare: true, want: []string{"no C++ compiler is installed", "install the package g++"}},
		{name: "no npm", want: []string{"npm is not installed", "install npm"}},
		{name: "no network", npm: `echo "npm error network getaddrinfo EAI_AGAIN the.registry" >&2; exit 1`,
			want: []string{"cannot download node-llama-cpp@", "EAI_AGAIN the.registry", "check the network"}},
		{name: "changed package", npm: `echo changed >changed.tgz; echo changed.tgz`,
			want: []string{"checksum of node-llama-cpp@", "want sha512 6e5b488a9b96", "got b8b0ed52c9fb", "nothing was installed"}},
		{name: "no prebuilt for the processor", npm: "exit 1", uname: `case $1 in -s) echo Linux ;; *) echo riscv64 ;; esac`,
			want: []string{"no prebuilt llama.cpp for linux-riscv64 with the cpu backend", "LLAMA_BUILD=source"}},
		{name: "no prebuilt for the backend", npm: "exit 1", uname: `case $1 in -s) echo Linux ;; *) echo aarch64 ;; esac`,
			env: []string{"LLAMA_BACKEND=vulkan"}, want: []string{"no prebuilt llama.cpp for linux-arm64 with the vulkan backend"}},
		{name: "source without cmake", npm: "exit 1", env: []string{"LLAMA_BUILD=source"},
			want: []string{"cmake is not installed", "install the package cmake"}},
		{name: "nothing installed", env: []string{"LLAMA_BUILD=system"}, want: []string{"pkg-config finds no llama.cpp 0.5.0 or later"}},
		{name: "unknown build", env: []string{"LLAMA_BUILD=sauce"}, want: []string{"LLAMA_BUILD=sauce is not one of auto, system, prebuilt, source"}},
		{name: "unknown backend", env: []string{"LLAMA_BACKEND=rocm"}, want: []string{"LLAMA_BACKEND=rocm is not one of cpu, vulkan, cuda"}},
		{name: "cache that cgo cannot name", env: []string{"XDG_CACHE_HOME=/nowhere/my cache"}, want: []string{"'/nowhere/my cache/meshnet/llama' has a space or comma"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := newSandbox(t)
			if c.npm != "" {
				s.fake("npm", c.npm)
			}
			if !c.bare {
				s.fake("c++", "exit 1")
			}
			if c.uname != "" {
				s.fake("uname", c.uname)
			}
			stdout, stderr, ok := s.run("llama.sh", c.env)
			if ok {
				t.Fatalf("it succeeded: %s%s", stdout, stderr)
			}
			lines := strings.Split(strings.TrimSpace(stderr), "\n")
			last := lines[len(lines)-1]
			for _, want := range c.want {
				if !strings.Contains(last, want) {
					t.Errorf("the last line does not say %q: %s", want, last)
				}
			}
			if left := s.leftovers(); len(left) != 0 {
				t.Errorf("the cache holds %v, want nothing", left)
			}
		})
	}
}

func TestMadePrefixNeedsNoNPM(t *testing.T) {
	s := newSandbox(t)
	s.fake("npm", `echo npm was called >&2; exit 1`)
	pkgconfig, stderr, ok := s.run("llama.sh", nil, "--print-pkgconfig")
	if !ok {
		t.Fatal(stderr)
	}
	prefix := strings.TrimSuffix(strings.TrimSpace(pkgconfig), "/lib/pkgconfig")
	writeFile(t, filepath.Join(prefix, "complete"), "")
	if _, stderr, ok := s.run("llama.sh", nil); !ok {
		t.Errorf("with a whole prefix in the cache it failed: %s", stderr)
	}
}

func TestInstalledLlamaIsUsedFrom050On(t *testing.T) {
	if _, err := exec.LookPath("pkg-config"); err != nil {
		t.Skip("pkg-config is not installed")
	}
	cases := []struct {
		name, version string
		env           []string
		used          bool
	}{
		{name: "the oldest that fits", version: "0.5.0", used: true},
		{name: "newer", version: "0.12.1", used: true},
		{name: "too old", version: "0.4.9"},
		{name: "a backend was asked for", version: "0.5.0", env: []string{"LLAMA_BACKEND=cpu"}},
		{name: "the prebuilt one was asked for", version: "0.5.0", env: []string{"LLAMA_BUILD=prebuilt"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := newSandbox(t)
			s.link("pkg-config")
			installed := t.TempDir()
			writeFile(t, filepath.Join(installed, "llama.pc"),
				"prefix=/opt/llama\nName: llama\nDescription: llama.cpp\nVersion: "+c.version+"\nLibs: -L/opt/llama/lib -lllama\nCflags: -I/opt/llama/include\n")
			env := append([]string{"PKG_CONFIG_PATH=" + installed}, c.env...)
			path, stderr, ok := s.run("llama.sh", env, "--print-pkgconfig")
			if !ok {
				t.Fatal(stderr)
			}
			if used := strings.TrimSpace(path) == installed; used != c.used {
				t.Errorf("PKG_CONFIG_PATH is %q: the installed %s is used: %v, want %v", path, c.version, used, c.used)
			}
			key, _, _ := s.run("llama.sh", env, "--print-prefix")
			if want := c.version + ":/opt/llama\n"; (key == want) != c.used {
				t.Errorf("the cache key is %q; that of the installed one is %q, and it is used: %v", key, want, c.used)
			}
		})
	}
}

func TestStandInAnswersAsPkgConfigDoes(t *testing.T) {
	s := newSandbox(t)
	folder := t.TempDir()
	writeFile(t, filepath.Join(folder, "llama.pc"), "prefix=/c/llama\nlibdir=${prefix}/lib\nincludedir=${prefix}/include\n\n"+
		"Name: llama\nVersion: 0.5.0\nLibs: -L${libdir} -Wl,-rpath,${libdir} -lllama\nCflags: -I${includedir}\n")
	env := []string{"PKG_CONFIG_PATH=" + folder + ":/elsewhere"}
	for question, want := range map[string]string{
		"--libs":   "-L/c/llama/lib -Wl,-rpath,/c/llama/lib -lllama\n",
		"--cflags": "-I/c/llama/include\n",
	} {
		if got, stderr, _ := s.run("pkg-config.sh", env, question, "--", "llama"); got != want {
			t.Errorf("%s: got %q, want %q; %s", question, got, want, stderr)
		}
	}
	if _, stderr, ok := s.run("pkg-config.sh", env, "--libs", "--", "openssl"); ok || !strings.Contains(stderr, "install the package pkg-config") {
		t.Errorf("another package: success %v, error %q", ok, stderr)
	}
}
