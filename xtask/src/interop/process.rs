//! Running players: bounded in time, output in files, nothing left behind. A program dies with the thread that
//! started it (`setpriv --pdeathsig`), so even a killed run leaves no player behind.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::workspace::has_program;

/// How often a running program is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Seconds since its start, and how short of processors the machine was in them.
pub(super) struct Stopwatch {
    start: Instant,
    waited_us: Option<u64>,
}

impl Stopwatch {
    pub(super) fn start() -> Self {
        Self { start: Instant::now(), waited_us: waited_us() }
    }

    pub(super) fn seconds(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }

    /// Share of the time in which something that could run had to wait for a processor; `None` where the kernel does
    /// not say.
    pub(super) fn pressure(&self) -> Option<f64> {
        let waited = waited_us()?.saturating_sub(self.waited_us?);
        Some(waited as f64 / 1e6 / self.seconds().max(1e-3))
    }
}

/// The kernel's count of microseconds in which something waited for a processor.
fn waited_us() -> Option<u64> {
    parse_pressure(&std::fs::read_to_string("/proc/pressure/cpu").ok()?)
}

fn parse_pressure(text: &str) -> Option<u64> {
    let some = text.lines().find(|line| line.starts_with("some "))?;
    some.split_whitespace().find_map(|word| word.strip_prefix("total="))?.parse().ok()
}

/// A program to be run.
pub(super) struct ProgramSpec {
    argv: Vec<OsString>,
    namespace: Option<String>,
    as_nobody: bool,
    env: Vec<(&'static str, OsString)>,
}

/// A program that has ended, or was ended because its time was up.
pub(super) struct ProgramResult {
    pub(super) status: Option<ExitStatus>,
    pub(super) out: String,
    pub(super) err: String,
    pub(super) seconds: f64,
}

impl ProgramResult {
    /// Returns an error unless the program ended by itself with status 0; includes the last line of
    /// its output.
    pub(super) fn ok(&self, who: &str) -> Result<(), String> {
        match self.status {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(format!("{who}: {status}: {}", self.last_words())),
            None => Err(format!("{who} did not end within {:.1} s: {}", self.seconds, self.last_words())),
        }
    }

    /// The last line of the standard error, or of the output.
    pub(super) fn last_words(&self) -> &str {
        fn last(text: &str) -> Option<&str> {
            text.lines().map(str::trim).rfind(|line| !line.is_empty())
        }
        last(&self.err).or_else(|| last(&self.out)).unwrap_or("it said nothing")
    }
}

impl ProgramSpec {
    pub(super) fn new(program: impl Into<OsString>) -> Self {
        Self { argv: vec![program.into()], namespace: None, as_nobody: false, env: Vec::new() }
    }

    pub(super) fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.argv.push(arg.into());
        self
    }

    /// Arguments separated by spaces.
    pub(super) fn args(mut self, args: &str) -> Self {
        self.argv.extend(args.split_whitespace().map(OsString::from));
        self
    }

    pub(super) fn env(mut self, name: &'static str, value: impl Into<OsString>) -> Self {
        self.env.push((name, value.into()));
        self
    }

    /// Run in a network namespace.
    pub(super) fn inside(mut self, namespace: Option<&str>) -> Self {
        self.namespace = namespace.map(str::to_owned);
        self
    }

    /// Run as a user without rights, if we have rights to give up.
    pub(super) fn unprivileged(mut self) -> Self {
        self.as_nobody = is_root();
        self
    }

    /// Starts it; standard output and error go to `<log>.out` and `<log>.err`.
    pub(super) fn start(&self, log: &Path) -> Result<RunningProgram, String> {
        let mut argv: Vec<OsString> = Vec::new();
        if let Some(namespace) = &self.namespace {
            argv.extend(["ip", "netns", "exec", namespace].map(OsString::from));
        }
        if has_program("setpriv") {
            argv.extend(["setpriv", "--pdeathsig", "KILL"].map(OsString::from));
            if self.as_nobody {
                argv.extend(["--reuid=65534", "--regid=65534", "--clear-groups"].map(OsString::from));
            }
            argv.push("--".into());
        }
        argv.extend(self.argv.iter().cloned());
        let (out, err) = (log.with_extension("out"), log.with_extension("err"));
        let file =
            |path: &Path| File::create(path).map_err(|e| format!("{} cannot be made: {e}", path.display()));
        let child = Command::new(&argv[0])
            .args(&argv[1..])
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(file(&out)?)
            .stderr(file(&err)?)
            .spawn()
            .map_err(|e| format!("{} could not be started: {e}", argv[0].display()))?;
        Ok(RunningProgram { child: Some(child), out, err, since: Stopwatch::start() })
    }

    /// Runs it to its end, but no longer than `seconds`.
    pub(super) fn run(&self, log: &Path, seconds: f64) -> Result<ProgramResult, String> {
        let mut running = self.start(log)?;
        running.wait(seconds)
    }
}

/// A program that runs; killed when dropped.
pub(super) struct RunningProgram {
    child: Option<Child>,
    out: PathBuf,
    err: PathBuf,
    since: Stopwatch,
}

impl RunningProgram {
    /// Waits for its end, at most until `seconds` after its start; then it is killed.
    pub(super) fn wait(&mut self, seconds: f64) -> Result<ProgramResult, String> {
        let status = loop {
            if let Some(status) = self.ended()? {
                break Some(status);
            }
            if self.since.seconds() > seconds {
                self.kill();
                break None;
            }
            std::thread::sleep(LOOK_EVERY);
        };
        Ok(ProgramResult { status, out: self.output(), err: self.errors(), seconds: self.since.seconds() })
    }

    /// Its status, if it has ended.
    pub(super) fn ended(&mut self) -> Result<Option<ExitStatus>, String> {
        match &mut self.child {
            Some(child) => child.try_wait().map_err(|e| format!("waiting for a program: {e}")),
            None => Err("the program was killed before".into()),
        }
    }

    /// Asks it to end as Ctrl-C would.
    pub(super) fn interrupt(&self) -> Result<(), String> {
        let Some(child) = &self.child else { return Ok(()) };
        let status = Command::new("sh").args(["-c", "kill -INT \"$0\"", &child.id().to_string()]).status();
        match status {
            Ok(status) if status.success() => Ok(()),
            other => Err(format!("kill -INT {}: {other:?}", child.id())),
        }
    }

    pub(super) fn seconds(&self) -> f64 {
        self.since.seconds()
    }

    pub(super) fn output(&self) -> String {
        read_lossy(&self.out)
    }

    pub(super) fn errors(&self) -> String {
        read_lossy(&self.err)
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // Both fail only if it has ended by itself meanwhile, which is what we want.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        self.kill();
    }
}

fn read_lossy(path: &Path) -> String {
    std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

/// Whether we run as root: namespaces can be made, rights can be given up.
pub(super) fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("millrace-xtask-test-{}-{name}", std::process::id()))
    }

    fn clean(log: &Path) {
        for extension in ["out", "err"] {
            std::fs::remove_file(log.with_extension(extension)).unwrap();
        }
    }

    #[test]
    fn pressure_is_read_from_the_kernels_words() {
        let text = "some avg10=97.57 avg60=92.81 avg300=85.97 total=3485521544\nfull avg10=0.00 total=7\n";
        assert_eq!(parse_pressure(text), Some(3_485_521_544));
        assert_eq!(parse_pressure("full total=7\n"), None);
        assert!(Stopwatch::start().pressure().is_none_or(|share| share >= 0.0));
    }

    #[test]
    fn output_and_status_are_kept() {
        let log = log("kept");
        let ended =
            ProgramSpec::new("sh").arg("-c").arg("echo out; echo err >&2; exit 3").run(&log, 10.0).unwrap();
        assert_eq!((ended.out.as_str(), ended.err.as_str()), ("out\n", "err\n"));
        assert_eq!(ended.ok("sh").unwrap_err(), "sh: exit status: 3: err");
        let ended = ProgramSpec::new("true").run(&log, 10.0).unwrap();
        ended.ok("true").unwrap();
        assert_eq!(ended.last_words(), "it said nothing");
        clean(&log);
    }

    #[test]
    fn run_ends_program_after_timeout() {
        let log = log("bounded");
        let ended = ProgramSpec::new("sleep").arg("30").run(&log, 0.2).unwrap();
        assert!(ended.status.is_none() && ended.seconds < 10.0, "{} s", ended.seconds);
        assert!(ended.ok("sleep").unwrap_err().starts_with("sleep did not end within"));
        clean(&log);
    }

    #[test]
    fn interrupt_ends_running_program() {
        let log = log("interrupted");
        let script = "trap 'echo bye; exit 0' INT; echo up; while :; do sleep 0.05; done";
        // A shell cannot trap a signal that was ignored when it began, as it is for whatever a script runs with "&".
        let program = ProgramSpec::new("env").arg("--default-signal=INT").arg("sh").arg("-c").arg(script);
        let mut running = program.start(&log).unwrap();
        while running.output().is_empty() && running.seconds() < 10.0 {
            std::thread::sleep(LOOK_EVERY);
        }
        running.interrupt().unwrap();
        let ended = running.wait(10.0).unwrap();
        ended.ok("sh").unwrap();
        assert_eq!(ended.out, "up\nbye\n");
        clean(&log);
    }
}
