package deploy_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"go.yaml.in/yaml/v3"
)

// readYAML reads a file into a value; fields that the value does not have are ignored.
func readYAML(t *testing.T, path string, into any) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

type composeFile struct {
	Services map[string]composeService
	Volumes  map[string]any
}

type composeService struct {
	Image       string
	Build       struct{ Context, Dockerfile string }
	Environment map[string]string
	Ports       []string
	Volumes     []string
	DependsOn   any `yaml:"depends_on"`
}

func readCompose(t *testing.T) composeFile {
	t.Helper()
	var c composeFile
	readYAML(t, "../compose.yaml", &c)
	for _, name := range []string{"nats", "worker-1", "worker-2", "prometheus", "grafana"} {
		if _, ok := c.Services[name]; !ok {
			t.Fatalf("compose.yaml has no service %s", name)
		}
	}
	return c
}

func TestComposeNamesOnlyWhatIsThere(t *testing.T) {
	c := readCompose(t)
	for name, service := range c.Services {
		for _, volume := range service.Volumes {
			source, _, _ := strings.Cut(volume, ":")
			if !strings.HasPrefix(source, ".") {
				if _, ok := c.Volumes[source]; !ok {
					t.Errorf("%s uses a volume %s that is not declared", name, source)
				}
				continue
			}
			if _, err := os.Stat(filepath.Join("..", source)); err != nil {
				t.Errorf("%s mounts what is not there: %v", name, err)
			}
			if !strings.HasSuffix(volume, ":ro") {
				t.Errorf("%s may write to %s", name, source)
			}
		}
		if service.Build.Dockerfile != "" {
			if _, err := os.Stat(filepath.Join("..", service.Build.Context, service.Build.Dockerfile)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

func TestEveryImageIsPinnedByVersion(t *testing.T) {
	images := map[string]string{}
	for name, service := range readCompose(t).Services {
		if service.Build.Context == "" {
			images[name] = service.Image
		}
	}
	text, err := os.ReadFile("Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	for _, from := range regexp.MustCompile(`(?m)^FROM (\S+)`).FindAllStringSubmatch(string(text), -1) {
		images["Dockerfile "+from[1]] = from[1]
	}
	if len(images) < 5 {
		t.Fatalf("only %d images were found", len(images))
	}
	version := regexp.MustCompile(`^[a-z0-9/-]+:v?\d+\.\d+(\.\d+)?(-[a-z0-9]+)?$`)
	for where, image := range images {
		if !version.MatchString(image) {
			t.Errorf("%s: %q is not pinned by a version", where, image)
		}
	}
}

func TestNothingIsReachableFromOtherMachines(t *testing.T) {
	for name, service := range readCompose(t).Services {
		for _, port := range service.Ports {
			if !strings.HasPrefix(port, "127.0.0.1:") {
				t.Errorf("%s publishes %s on all addresses, with the passwords of this file", name, port)
			}
		}
	}
}

func TestPrometheusScrapesEveryWorker(t *testing.T) {
	var config struct {
		RuleFiles     []string `yaml:"rule_files"`
		ScrapeConfigs []struct {
			JobName       string                       `yaml:"job_name"`
			StaticConfigs []struct{ Targets []string } `yaml:"static_configs"`
		} `yaml:"scrape_configs"`
	}
	readYAML(t, "prometheus/prometheus.yml", &config)
	var scraped, workers []string
	for _, job := range config.ScrapeConfigs {
		for _, static := range job.StaticConfigs {
			if job.JobName == "worker" { // the alerts' name
				scraped = append(scraped, static.Targets...)
			}
		}
	}
	for name, service := range readCompose(t).Services {
		if service.Build.Dockerfile != "" {
			workers = append(workers, name+":9090")
		}
	}
	slices.Sort(workers)
	if !slices.Equal(scraped, workers) {
		t.Errorf("scraped are %v, the workers are %v", scraped, workers)
	}
	for _, file := range config.RuleFiles {
		if _, err := os.Stat(filepath.Join("prometheus", file)); err != nil {
			t.Error(err)
		}
	}
}

func TestWorkersReachNATSAsTheWorkerUser(t *testing.T) {
	c := readCompose(t)
	defaults := regexp.MustCompile(`\$\{(\w+):-([^}]*)\}`)
	passwords := map[string]string{} // by variable
	for variable, value := range c.Services["nats"].Environment {
		passwords[variable] = defaults.ReplaceAllString(value, "$2")
	}
	for _, name := range []string{"worker-1", "worker-2"} {
		env := c.Services[name].Environment
		given := defaults.ReplaceAllString(env["MESHNET_PASSWORD"], "$2")
		if env["MESHNET_NATS"] != "nats://nats:4222" || env["MESHNET_USER"] != worker || given != passwords["MESH_WORKER_PASSWORD"] {
			t.Errorf("%s connects to %s as %s, want nats://nats:4222 as %s with the server's password", name, env["MESHNET_NATS"], env["MESHNET_USER"], worker)
		}
		if node := env["MESHNET_NODE"]; node != name {
			t.Errorf("%s calls itself %q", name, node)
		}
	}
	text, err := os.ReadFile(permissions)
	if err != nil {
		t.Fatal(err)
	}
	for _, variable := range regexp.MustCompile(`password: \$(\w+)`).FindAllStringSubmatch(string(text), -1) {
		if passwords[variable[1]] == "" {
			t.Errorf("the server's configuration needs %s, which compose.yaml does not set", variable[1])
		}
	}
}

func TestNATSConfigurationSyncsEveryWriteAndHasThePermissions(t *testing.T) {
	for _, user := range []string{worker, operator, acme, globex} {
		t.Setenv("MESH_"+strings.ToUpper(user)+"_PASSWORD", password(user))
	}
	options, err := server.ProcessConfigFile("nats.conf")
	if err != nil {
		t.Fatal(err)
	}
	if !options.JetStream || !options.SyncAlways || options.StoreDir != "/data" {
		t.Errorf("JetStream %v, sync always %v, data in %s; want true, true, /data", options.JetStream, options.SyncAlways, options.StoreDir)
	}
	var users []string
	for _, user := range options.Users {
		users = append(users, user.Username)
		if user.Permissions == nil || user.Permissions.Publish == nil || user.Permissions.Subscribe == nil {
			t.Errorf("%s may do everything", user.Username)
		}
	}
	if want := []string{worker, operator, acme, globex}; !slices.Equal(users, want) {
		t.Errorf("users are %v, want %v", users, want)
	}
}

func TestHealthcheckFollowsHealthz(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("there is no bash")
	}
	var status atomic.Int32
	status.Store(http.StatusOK)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/healthz" {
			t.Errorf("it asks for %s", r.URL.Path)
		}
		w.WriteHeader(int(status.Load()))
	}))
	_, port, _ := strings.Cut(strings.TrimPrefix(web.URL, "http://"), ":")
	check := func() bool { return exec.Command(bash, "healthcheck.sh", port).Run() == nil }
	if !check() {
		t.Error("a healthy worker is not")
	}
	status.Store(http.StatusServiceUnavailable)
	if check() {
		t.Error("a worker that says 503 is healthy")
	}
	web.Close()
	if check() {
		t.Error("a worker that is not there is healthy")
	}
}

func TestDashboardUsesTheProvisionedDatasource(t *testing.T) {
	var provisioned struct{ Datasources []struct{ UID string } }
	readYAML(t, "grafana/provisioning/datasources/prometheus.yaml", &provisioned)
	text, err := os.ReadFile(dashboardFile)
	if err != nil {
		t.Fatal(err)
	}
	uses := regexp.MustCompile(`"uid": "(mesh-[a-z]+)"`).FindAllStringSubmatch(string(text), -1)
	if len(uses) == 0 {
		t.Error("no panel names the datasource")
	}
	for _, use := range uses {
		if use[1] != provisioned.Datasources[0].UID {
			t.Errorf("a panel asks %s, provisioned is %s", use[1], provisioned.Datasources[0].UID)
		}
	}
	if !json.Valid(text) {
		t.Errorf("%s is no JSON", dashboardFile)
	}
}
