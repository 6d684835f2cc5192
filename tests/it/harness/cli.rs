//! chiefsync as a process: the real binary, a clean environment, what it said.

use std::ffi::{OsStr, OsString};
use std::io::{Read, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use std::os::unix::process::ExitStatusExt as _;

use super::{PATIENCE, Place};

/// The longest that a command may take, whatever it does.
const LONGEST: Duration = Duration::from_secs(240);

/// A command line in the making.
#[derive(Clone)]
pub struct Cli {
    arguments: Vec<OsString>,
    variables: Vec<(OsString, OsString)>,
    log_format: &'static str,
    under: Vec<OsString>,
}

impl Cli {
    /// Nothing typed yet, nothing set but PATH and HOME.
    pub fn new(home: &Path) -> Cli {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let variables = vec![("PATH".into(), path), ("HOME".into(), home.into())];
        Cli { arguments: Vec::new(), variables, log_format: "text", under: Vec::new() }
    }

    /// One more argument.
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Cli {
        self.arguments.push(argument.as_ref().to_owned());
        self
    }

    /// More arguments.
    pub fn args<I: IntoIterator<Item: AsRef<OsStr>>>(mut self, arguments: I) -> Cli {
        self.arguments.extend(arguments.into_iter().map(|argument| argument.as_ref().to_owned()));
        self
    }

    /// One variable.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Cli {
        self.variables.retain(|(known, _)| known != name.as_ref());
        self.variables.push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// The server's address and keys, as variables.
    pub fn server(self, place: &Place) -> Cli {
        place.environment().into_iter().fold(self, |cli, (name, value)| cli.env(name, value))
    }

    /// Logs in JSON: [`Finished::ending`] needs it.
    pub fn json_log(mut self) -> Cli {
        self.log_format = "json";
        self
    }

    /// Below another program, which puts chiefsync in its own place.
    pub fn under<I: IntoIterator<Item: AsRef<OsStr>>>(mut self, words: I) -> Cli {
        self.under = words.into_iter().map(|word| word.as_ref().to_owned()).collect();
        self
    }

    /// As a user whom the modes of files stop, root or not.
    pub fn without_powers(self) -> Cli {
        if !rustix::process::geteuid().is_root() {
            return self;
        }
        let all = "-dac_override,-dac_read_search,-fowner";
        self.under(["setpriv", &format!("--bounding-set={all}"), &format!("--inh-caps={all}")])
    }

    /// Runs it to its end.
    #[track_caller]
    pub fn run(self) -> Finished {
        self.spawn().wait()
    }

    /// Starts it.
    #[track_caller]
    pub fn spawn(self) -> Running {
        let binary = OsString::from(env!("CARGO_BIN_EXE_chiefsync"));
        let mut words = self.under.iter().chain(std::iter::once(&binary)).chain(&self.arguments);
        let mut command = Command::new(words.next().expect("at least the binary"));
        command.args(words).env_clear().envs(self.variables);
        command.env("CHIEFSYNC_LOG_FORMAT", self.log_format).env("RUST_BACKTRACE", "1");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary under test");
        let stdout = Captured::of(child.stdout.take().expect("a pipe"));
        let stderr = Captured::of(child.stderr.take().expect("a pipe"));
        let line: Vec<_> = self.arguments.iter().map(|a| a.to_string_lossy()).collect();
        Running { child, stdout, stderr, line: format!("chiefsync {}", line.join(" ")) }
    }
}

/// What a process says, as it says it.
struct Captured {
    text: Arc<(Mutex<String>, Condvar)>,
    reader: Option<JoinHandle<()>>,
}

impl Captured {
    fn of(mut stream: impl Read + Send + 'static) -> Captured {
        let text: Arc<(Mutex<String>, Condvar)> = Arc::default();
        let into = Arc::clone(&text);
        let reader = std::thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(len @ 1..) = stream.read(&mut piece) {
                into.0.lock().expect("no panic here").push_str(&String::from_utf8_lossy(&piece[..len]));
                into.1.notify_all();
            }
        });
        Captured { text, reader: Some(reader) }
    }

    fn so_far(&self) -> String {
        self.text.0.lock().expect("no panic here").clone()
    }

    fn all(&mut self) -> String {
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
        self.so_far()
    }
}

/// A process that runs. It is killed when this is dropped.
pub struct Running {
    child: Child,
    stdout: Captured,
    stderr: Captured,
    line: String,
}

impl Running {
    /// Its number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has logged so far.
    pub fn log(&self) -> String {
        self.stderr.so_far()
    }

    /// Waits until the log contains this text.
    #[track_caller]
    pub fn wait_for_log(&mut self, text: &str) {
        self.wait_for_log_times(text, 1);
    }

    /// Waits until the log contains this text so often.
    #[track_caller]
    pub fn wait_for_log_times(&mut self, text: &str, times: usize) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            // First whether it ended: what it said before that has been read or will be.
            let ended = self.has_ended();
            let log = if ended { self.stderr.all() } else { self.stderr.so_far() };
            if log.matches(text).count() >= times {
                return;
            }
            assert!(!ended, "{}\nended without saying {text:?} {times} times; its log:\n{log}", self.line);
            assert!(Instant::now() < deadline, "{}\ndid not say {text:?} {times} times; its log:\n{log}", self.line);
            let said = self.stderr.text.0.lock().expect("no panic here");
            drop(self.stderr.text.1.wait_timeout(said, Duration::from_millis(20)));
        }
    }

    /// Whether it is over.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("the process's state").is_some()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).expect("a pid")).expect("a pid");
        rustix::process::kill_process(pid, signal).expect("a process that is there");
    }

    /// Stops it where it stands, without its knowing; returns when it stands.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
        super::eventually("the process stands still", || self.state() == Some('T'));
    }

    /// The sum of a metric over its labels; it must have been started with `--metrics-addr 127.0.0.1:0`.
    #[track_caller]
    pub fn metric(&mut self, name: &str) -> f64 {
        self.metrics()
            .lines()
            .filter(|line| line.split([' ', '{']).next() == Some(name))
            .map(|line| {
                line.rsplit_once(' ')
                    .and_then(|(_, value)| value.parse::<f64>().ok())
                    .expect("a number at the line's end")
            })
            .sum()
    }

    /// Everything that `/metrics` says.
    #[track_caller]
    pub fn metrics(&mut self) -> String {
        self.wait_for_log("metrics are served");
        let log = self.log();
        let address = log.split_once("http://").and_then(|(_, rest)| rest.split_once("/metrics")).expect("a URL").0;
        let mut stream = TcpStream::connect(address).expect("a metrics server");
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: it\r\nConnection: close\r\n\r\n").expect("a request");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("an answer");
        text
    }

    /// Lets it go on.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// The largest memory that it ever had, in bytes.
    pub fn peak_memory_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("a process that is there");
        let read = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a kernel that counts");
            line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
        };
        // The pages of the program itself are large in a debug build, and clean.
        read("VmHWM:") - read("RssFile:")
    }

    fn state(&self) -> Option<char> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).ok()?;
        stat.rsplit_once(") ")?.1.chars().next()
    }

    /// kill -9: nothing is tidied up.
    pub fn kill(mut self) -> Finished {
        let _ = self.child.kill();
        self.wait()
    }

    /// Waits for its end.
    #[track_caller]
    pub fn wait(mut self) -> Finished {
        let deadline = Instant::now() + LONGEST;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("the process's state") {
                break status;
            }
            assert!(
                Instant::now() < deadline,
                "{}\nstill runs after {} s; its log:\n{}",
                self.line,
                LONGEST.as_secs(),
                self.stderr.so_far()
            );
            std::thread::sleep(Duration::from_millis(5));
        };
        Finished { line: std::mem::take(&mut self.line), status, stdout: self.stdout.all(), stderr: self.stderr.all() }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() && !self.line.is_empty() {
            eprintln!("-- {}\n{}--", self.line, self.stderr.so_far());
        }
    }
}

/// A process that ended.
pub struct Finished {
    line: String,
    status: ExitStatus,
    /// What it printed.
    pub stdout: String,
    /// What it logged.
    pub stderr: String,
}

impl Finished {
    /// The exit code; a signal counts as 128 more than its number, as in a shell.
    pub fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| 128 + self.status.signal().unwrap_or(0))
    }

    /// Fails unless it ended with this code.
    #[track_caller]
    pub fn expect_code(self, code: i32) -> Finished {
        let ended = self.code();
        assert!(
            ended == code,
            "{}\nended with {ended}, not {code}\n-- stdout\n{}\n-- stderr\n{}",
            self.line,
            self.stdout,
            self.stderr
        );
        self
    }

    /// The last line of a JSON log: `code`, `ending`, `message`, `details`, `hint`.
    #[track_caller]
    pub fn ending(&self) -> serde_json::Value {
        let last = self.stderr.lines().last().unwrap_or_default();
        serde_json::from_str(last)
            .unwrap_or_else(|e| panic!("{}\nno JSON at the end of its log: {e}\n{}", self.line, self.stderr))
    }

    /// Fails unless the log (and the last word) contains this text.
    #[track_caller]
    pub fn expect_said(self, text: &str) -> Finished {
        assert!(self.stderr.contains(text), "{}\ndid not say {text:?}\n-- stderr\n{}", self.line, self.stderr);
        self
    }
}
