//! The settings' layers, as people meet them: `millrace config` and `serve --config`.

use std::path::Path;
use std::process::Output;
use std::time::Duration;

use crate::support::{Server, film, millrace, ok};
use serde_json::Value;

/// Runs the program with variables.
fn run_with(variables: &[(&str, &str)], args: &[&str]) -> Output {
    millrace().envs(variables.iter().copied()).args(args).output().expect("millrace can be started")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("output is UTF-8")
}

/// Value and origin of a setting.
fn shown(variables: &[(&str, &str)], file: &Path, name: &str) -> (Value, String) {
    let output = run_with(variables, &["config", "show", "--json", "--config", file.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    let all: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let found = all.iter().find(|setting| setting["name"] == name).unwrap_or_else(|| panic!("no {name}"));
    (found["value"].clone(), found["origin"].as_str().unwrap().to_owned())
}

fn written(dir: &tempfile::TempDir, content: &str) -> std::path::PathBuf {
    let path = dir.path().join("millrace.toml");
    std::fs::write(&path, content).unwrap();
    path
}

#[test]
fn config_show_reports_value_and_origin_of_top_layer() {
    let dir = tempfile::tempdir().unwrap();
    let file = written(&dir, "# ours\nmax-streams = 7\nsmooth = true\nmember = [\"/a\", \"/b\"]\n");
    let line = |line: usize| format!("{}:{line}", file.display());
    assert_eq!(shown(&[], &file, "max-streams"), ("7".into(), line(2)));
    assert_eq!(shown(&[], &file, "smooth"), (true.into(), line(3)));
    assert_eq!(shown(&[], &file, "member"), (serde_json::json!(["/a", "/b"]), line(4)));
    assert_eq!(shown(&[], &file, "fec"), ("allow".into(), "default".to_owned()));
    let variables = [("MILLRACE_MAX_STREAMS", "8"), ("MILLRACE_SMOOTH", "0"), ("MILLRACE_MEMBER", "/c:/d,e")];
    assert_eq!(shown(&variables, &file, "max-streams"), ("8".into(), "MILLRACE_MAX_STREAMS".to_owned()));
    assert_eq!(shown(&variables, &file, "smooth"), (false.into(), "MILLRACE_SMOOTH".to_owned()));
    assert_eq!(
        shown(&variables, &file, "member"),
        (serde_json::json!(["/c", "/d,e"]), "MILLRACE_MEMBER".to_owned())
    );
    // One store stands for the other.
    let variables = [("MILLRACE_STORE", "/films")];
    assert_eq!(shown(&variables, &file, "member").1, "default");
}

#[test]
fn config_show_output_is_equivalent_config_file() {
    let dir = tempfile::tempdir().unwrap();
    let first = written(
        &dir,
        "cache = \"96MiB\"\ncpu = [1, 0]\nengines = 2\nhost = \"tv \\\"x\\\"\"\nmax-damaged = \"1%\"\n",
    );
    let show = |file: &Path| ok(&["config", "show", "--config", file.to_str().unwrap()]);
    let said = show(&first);
    assert!(said.contains("cpu = [1, 0]\n") && said.contains("# listen (default: all addresses"), "{said}");
    let second = dir.path().join("second.toml");
    std::fs::write(&second, &said).unwrap();
    assert_eq!(show(&second), said);
    assert!(ok(&["config", "check", second.to_str().unwrap()]).contains("nothing wrong"));
    let said = ok(&["config", "show", "--origin", "--config", first.to_str().unwrap()]);
    let line = said.lines().find(|line| line.starts_with("engines")).unwrap();
    assert!(line.ends_with(&format!("# {}:3", first.display())), "{line}");
}

#[test]
fn config_list_toml_without_comment_signs_equals_defaults() {
    let dir = tempfile::tempdir().unwrap();
    let show = |content: &str| {
        let file = written(&dir, content);
        assert!(ok(&["config", "check", file.to_str().unwrap()]).contains("nothing wrong"));
        ok(&["config", "show", "--config", file.to_str().unwrap()])
    };
    let defaults = show("");
    let template = ok(&["config", "list", "--toml"]);
    assert_eq!(show(&template), defaults);
    let settings: Vec<_> = template.lines().filter(|line| !line.starts_with("# ")).collect();
    let names: Vec<_> = settings.iter().filter_map(|line| line.strip_prefix('#')).collect();
    let all: Vec<Value> = serde_json::from_str(&ok(&["config", "list", "--json"])).unwrap();
    assert_eq!(names.len(), all.len(), "{settings:?}");
    // A name without a value has a default that depends on the machine.
    let with_value: Vec<_> = names.into_iter().filter(|line| !line.ends_with('=')).collect();
    assert!(with_value.len() > 30, "{with_value:?}");
    assert_eq!(show(&with_value.join("\n")), defaults);
    assert_ne!(show(&with_value.join("\n").replace("max-streams = 5000", "max-streams = 5")), defaults);
}

#[test]
fn everything_that_is_wrong_with_a_file_is_said_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let file = written(
        &dir,
        "cahce = \"1GiB\"\nburst = \"1h\"\nfec = \"most\"\nsmooth = 1\nlisten = \"8554\"\ncache = \"64MiB\"\n",
    );
    for args in [["config", "check"], ["serve", "--config"]] {
        let output = run_with(&[], &[args[0], args[1], file.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let error = text(&output.stderr);
        for (line, what) in [
            (1, "cahce: there is no such setting; did you mean cache?"),
            (2, "got 1h, allowed: 1ms to 20ms"),
            (3, "[possible values: allow, off]"),
            (4, "smooth: write true or false"),
            (5, "write an address and a port"),
        ] {
            let place = format!("millrace: {}:{line}: ", file.display());
            let said = error
                .lines()
                .find(|said| said.starts_with(&place))
                .unwrap_or_else(|| panic!("no {place} in {error}"));
            assert!(said.contains(what), "{said}");
        }
        assert_eq!(error.lines().count(), 5, "{error}");
    }
}

#[test]
fn values_that_do_not_go_together_are_told_with_their_place() {
    let dir = tempfile::tempdir().unwrap();
    let file = written(&dir, "engines = 2\ncpu = 1\n");
    for args in [["config", "check"], ["serve", "--config"]] {
        let output = run_with(&[], &[args[0], args[1], file.to_str().unwrap()]);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(&format!("{}:2: --cpu: got 1 core for 2 engines", file.display())), "{error}");
    }
    let output = run_with(&[("MILLRACE_CPU", "0,1")], &["serve"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("MILLRACE_CPU: --cpu: got 2 cores for 1 engine"), "{output:?}");
}

#[test]
fn serve_with_invalid_environment_variable_names_it() {
    let output = run_with(&[("MILLRACE_ENGINES", "many")], &["serve"]);
    assert_eq!(output.status.code(), Some(2));
    let error = text(&output.stderr);
    assert!(error.starts_with("millrace: MILLRACE_ENGINES: invalid value 'many'"), "{error}");
    // Typed, it hides the variable.
    let output = run_with(&[("MILLRACE_ENGINES", "many")], &["serve", "--engines", "none"]);
    assert!(text(&output.stderr).contains("invalid value 'none' for '--engines <N>'"), "{output:?}");
}

#[test]
fn config_file_missing_or_not_utf8_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("none.toml");
    let binary = dir.path().join("binary");
    std::fs::write(&binary, [0xff, 0xfe]).unwrap();
    for (file, what) in
        [(&missing, "No such file"), (&binary, "not UTF-8"), (&dir.path().to_owned(), "directory")]
    {
        for args in [["config", "check"], ["serve", "--config"]] {
            let output = run_with(&[], &[args[0], args[1], file.to_str().unwrap()]);
            assert_eq!(output.status.code(), Some(2));
            let error = text(&output.stderr);
            assert!(error.contains(&*file.to_string_lossy()) && error.contains(what), "{error}");
        }
    }
}

#[test]
fn serve_with_config_file_applies_its_settings() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("films");
    std::fs::create_dir(&folder).unwrap();
    film(&folder, "a.ts", 1);
    let content = format!(
        "folders = [\"{}\"]\nstore = \"{}\"\nlisten = \"127.0.0.1:0\"\ncache = \"48MiB\"\nquiet = true\n",
        folder.display(),
        dir.path().join("store").display()
    );
    let file = written(&dir, &content);
    let mut command = millrace();
    // Options on the command line override the file.
    command.args(["serve", "--cache", "32MiB", "--config"]).arg(&file);
    let mut server = Server::spawn(command);
    assert!(server.said("cache of 32MiB").len() == 1, "{:?}", server.log);
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while !ok(&["ls", "--store", dir.path().join("store").to_str().unwrap()]).contains('a') {
        assert!(std::time::Instant::now() < deadline, "the folder's title was not added");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(server.interrupt());
}

#[test]
fn config_reference_matches_config_list() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/ref/config.md");
    let document = std::fs::read_to_string(&path).unwrap();
    let inside =
        document.split("<!-- settings -->\n").nth(1).and_then(|rest| rest.split("<!-- /settings -->").next());
    assert_eq!(
        inside.unwrap_or_default().trim(),
        ok(&["config", "list", "--markdown"]).trim(),
        "put what `millrace config list --markdown` prints between the marks of docs/ref/config.md"
    );
    let all: Vec<Value> = serde_json::from_str(&ok(&["config", "list", "--json"])).unwrap();
    let names: Vec<_> = all.iter().map(|setting| setting["name"].as_str().unwrap()).collect();
    assert!(
        names.contains(&"cache") && names.contains(&"folders") && !names.contains(&"config"),
        "{names:?}"
    );
    let words = ok(&["config", "list"]);
    assert!(
        names.iter().all(|name| words.lines().any(|line| line.split(' ').next() == Some(name))),
        "{words}"
    );
}
