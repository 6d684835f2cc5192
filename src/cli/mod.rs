//! The command line: what was typed, one file a command; each turns it into a configuration and calls the library.
//!
//! In reading order: `parse` here, `shared` (the flags of watch and sync), the commands, then what surrounds a run:
//! `session`, `screen`, `logging`, `live`, `serve`, `signals`. Results go to stdout, everything else to stderr.

use std::ffi::OsString;
use std::io::Write as _;
use std::panic::AssertUnwindSafe;
use std::path::Path;

use clap::builder::Resettable;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgAction, Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueEnum};

use chiefsync::exit::{Ending, ExitCode, UsageError};

mod demo;
mod globs;
mod live;
mod logging;
mod ls;
#[cfg(test)]
mod reference;
mod screen;
mod serve;
mod session;
mod shared;
mod signals;
mod sync;
mod table;
mod verify;
mod watch;

/// Carries what a distributed training job produces from the chief's volume to S3-compatible storage while it trains,
/// and proves it.
#[derive(Debug, Parser)]
#[command(name = "chiefsync", version, max_term_width = 100, disable_help_subcommand = true)]
pub struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// How much is said, and how.
#[derive(Debug, Clone, Copy, Args)]
#[command(next_help_heading = "Output")]
pub struct Global {
    /// Says nothing but warnings and errors; --verbose overrides it.
    #[arg(short = 'q', long = "silent", global = true, env = "CHIEFSYNC_SILENT")]
    silent: bool,
    /// Says more; twice says everything.
    #[arg(short, long, global = true, env = "CHIEFSYNC_VERBOSE", action = ArgAction::Count)]
    verbose: u8,
    /// What the log looks like.
    #[arg(long, global = true, env = "CHIEFSYNC_LOG_FORMAT", value_name = "FORMAT", default_value = "auto")]
    log_format: LogFormat,
}

impl Global {
    /// Whether only warnings and errors are wanted.
    fn quiet(self) -> bool {
        self.silent && self.verbose == 0
    }
}

/// What the log looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// A live view on a terminal, lines of text elsewhere.
    Auto,
    /// One line of text an event.
    Text,
    /// One JSON object an event, the ending included.
    Json,
}

#[derive(Debug, Subcommand)]
enum Command {
    Watch(watch::Watch),
    Sync(sync::Sync),
    Verify(verify::Verify),
    Ls(ls::Ls),
    Demo(demo::Demo),
}

/// Reads the command line and the variables.
///
/// # Errors
/// The exit code of what was shown instead: help, the version, or what is wrong with what was typed.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Cli, std::process::ExitCode> {
    let arguments: Vec<_> = arguments.into_iter().collect();
    try_parse(&arguments).map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // Help that nobody reads to its end (`| head`) is no failure.
            let _ = error.print();
            ExitCode::Proven.into()
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            ExitCode::Usage.into()
        }
        _ => {
            let ending = usage_ending(&error);
            let _ = ending.report(&mut std::io::stderr().lock());
            if arguments.iter().any(|typed| typed == "watch" || typed == "sync") {
                shared::leave_last_word(&ending, shared::default_termination_message().as_deref());
            }
            ending.code.into()
        }
    })
}

fn try_parse(arguments: &[OsString]) -> Result<Cli, clap::Error> {
    let matches = command().try_get_matches_from(arguments)?;
    let mut typed = Cli::from_arg_matches(&matches)?;
    if let Some((_, matches)) = matches.subcommand() {
        match &mut typed.command {
            Command::Watch(watch) => watch.shared.globs.take_rules(matches),
            Command::Sync(sync) => sync.shared.globs.take_rules(matches),
            Command::Verify(verify) => verify.globs.take_rules(matches),
            Command::Ls(_) | Command::Demo(_) => {}
        }
    }
    Ok(typed)
}

/// The definitions, with what derive can't say: a variable that is set to nothing counts as not set, because that is how
/// manifests leave one out; and help never shows a variable's value.
fn command() -> clap::Command {
    fn adjust(command: clap::Command) -> clap::Command {
        let adjusted = command.mut_args(|argument| {
            let empty = argument.get_env().is_some_and(|name| std::env::var_os(name).is_some_and(|v| v.is_empty()));
            let argument = argument.hide_env_values(true);
            if empty { argument.env(Resettable::Reset) } else { argument }
        });
        adjusted.mut_subcommands(adjust)
    }
    adjust(Cli::command())
}

/// What clap found wrong, in our form: what and where, then a way out.
fn usage_ending(error: &clap::Error) -> Ending {
    let text = error.render().to_string();
    let mut lines = text.lines().take_while(|line| !line.is_empty());
    let first = lines.next().unwrap_or_default();
    let details = lines.map(|line| line.trim().to_owned()).filter(|line| !line.is_empty()).collect();
    let ours = std::error::Error::source(error).and_then(|source| source.downcast_ref::<UsageError>());
    let hint = ours.and_then(|ours| ours.hint.clone()).or_else(|| suggestion(error)).unwrap_or_else(|| {
        let usage = text.lines().find_map(|line| line.strip_prefix("Usage: ")).unwrap_or("chiefsync COMMAND");
        format!("write {usage}; --help explains every flag")
    });
    Ending::usage(first.strip_prefix("error: ").unwrap_or(first), hint).with_details(details)
}

fn suggestion(error: &clap::Error) -> Option<String> {
    let kinds = [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand, ContextKind::SuggestedValue];
    kinds.into_iter().find_map(|kind| match error.get(kind)? {
        ContextValue::String(name) => Some(format!("did you mean {name}?")),
        ContextValue::Strings(names) if !names.is_empty() => Some(format!("did you mean {}?", names.join(" or "))),
        _ => None,
    })
}

impl Cli {
    /// Does what was asked for, says how it ended, and returns the code to end with.
    pub fn run(self) -> ExitCode {
        let screen = screen::Screen::new(self.global);
        logging::catch_panics();
        let ending = std::panic::catch_unwind(AssertUnwindSafe(|| self.command.run(&screen)))
            .unwrap_or_else(|_| Ending::fault("a panic, logged above"));
        // A reader that went away (`| head`) changes nothing about what was done.
        let _ = screen.report(&ending);
        let _ = std::io::stdout().flush();
        ending.code
    }
}

impl Command {
    fn run(self, screen: &screen::Screen) -> Ending {
        match self {
            Command::Watch(watch) => watch.run(screen),
            Command::Sync(sync) => sync.run(screen),
            Command::Verify(verify) => verify.run(screen),
            Command::Ls(ls) => ls.run(screen),
            Command::Demo(demo) => demo.run(screen),
        }
    }
}

/// A path as a person would type it.
fn shown(path: &Path) -> String {
    chiefsync::exit::one_line(&path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use chiefsync::clock::Duration;
    use chiefsync::config::RestartPolicy;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    /// How the command line `line` fails.
    fn fails(line: &str) -> (u8, String) {
        let ending = usage_ending(&try_parse(&words(line)).expect_err(line));
        let mut text = Vec::new();
        ending.report(&mut text).unwrap();
        (ending.code.number(), String::from_utf8(text).unwrap())
    }

    #[test]
    fn the_definitions_hold_together() {
        command().debug_assert();
    }

    /// Exit code 2; `error:` says what and where, `hint:` the way out.
    #[test]
    fn what_was_typed_wrong_is_said_with_a_way_out() {
        for (line, text) in [
            (
                "chiefsync watch --settle soon /src s3://bucket/job",
                "error: invalid value 'soon' for '--settle <TIME>': \"soon\" is no time span\n\
                 hint: write numbers and units: 500ms, 2s, 10m, 1h30m\n",
            ),
            (
                "chiefsync watch --rescan 0s /src s3://bucket/job",
                "error: invalid value '0s' for '--rescan <TIME>': \"0s\" is too short\n\
                 hint: write at least 1 s\n",
            ),
            (
                "chiefsync sync --memory 1MiB /src s3://bucket/job",
                "error: invalid value '1MiB' for '--memory <SIZE>': 1 MiB is too little to work with\n\
                 hint: give at least 24 MiB\n",
            ),
            (
                "chiefsync sync --dryrun /src s3://bucket/job",
                "error: unexpected argument '--dryrun' found\n\
                 hint: did you mean --dry-run?\n",
            ),
            (
                "chiefsync wacth /src s3://bucket/job",
                "error: unrecognized subcommand 'wacth'\n\
                 hint: did you mean watch?\n",
            ),
            (
                "chiefsync watch /src",
                "error: the following required arguments were not provided:\n  <DEST>\n\
                 hint: write chiefsync watch <SRC> <DEST>; --help explains every flag\n",
            ),
            (
                "chiefsync watch --restart-policy Always /src s3://bucket/job",
                "error: invalid value 'Always' for '--restart-policy <POLICY>': a trainer that is always restarted \
                 never ends its job\n\
                 hint: set the job's restartPolicy to OnFailure, Never or ExitCode, and write the same here\n",
            ),
            (
                "chiefsync watch --metrics-addr here /src s3://bucket/job",
                "error: invalid value 'here' for '--metrics-addr <ADDR>': \"here\" is no address to listen on\n\
                 hint: write host:port or :port, like 127.0.0.1:9400 or :9400\n",
            ),
        ] {
            assert_eq!(fails(line), (2, text.to_owned()));
        }
    }

    #[test]
    fn the_defaults_are_those_of_the_design() {
        let typed = try_parse(&words("chiefsync watch /no/such/src s3://bucket/{run} --run 7")).unwrap();
        let Command::Watch(watch) = typed.command else { panic!("{typed:?}") };
        let config = watch.config().unwrap();
        let seconds = Duration::from_secs;
        assert_eq!(config.base.destination.url(), "s3://bucket/7/");
        assert_eq!(config.base.control, Path::new("/no/such/src/.chiefsync"));
        assert_eq!((config.settle, config.rescan, config.growing_interval), (seconds(2), None, seconds(30)));
        assert_eq!((config.base.quiet, config.base.grace, config.base.lease), (seconds(5), seconds(27), seconds(60)));
        assert_eq!((config.base.deadline, config.idle_deadline), (Some(seconds(3600)), None));
        assert_eq!((config.restart_policy, config.restart_wait), (RestartPolicy::Unknown, seconds(600)));
        assert!(config.base.fence && !config.stay);

        let typed = try_parse(&words("chiefsync sync / file:///no/such/dest")).unwrap();
        let Command::Sync(sync) = typed.command else { panic!("{typed:?}") };
        assert!(sync.config().unwrap_err().message.contains("lies within SRC"));
        let typed = try_parse(&words("chiefsync sync /proc s3://bucket/job")).unwrap();
        let Command::Sync(sync) = typed.command else { panic!("{typed:?}") };
        let config = sync.config().unwrap();
        assert_eq!((config.base.deadline, config.dry_run, config.delete), (None, false, false));
    }

    /// The last glob that matches decides, so the order across both flags is what was typed.
    #[test]
    fn includes_and_excludes_keep_their_order() {
        let line = "chiefsync sync --exclude *.log --include keep/*.log /proc s3://bucket/job --exclude keep/not.log";
        let Command::Sync(sync) = try_parse(&words(line)).unwrap().command else { panic!() };
        let filter = sync.config().unwrap().base.filter;
        for (path, excluded) in [("a.log", true), ("keep/a.log", false), ("keep/not.log", true), ("a", false)] {
            assert_eq!(filter.excludes(path), excluded, "{path}");
        }
        let line = "chiefsync sync --include a[ /proc s3://bucket/job";
        let Command::Sync(sync) = try_parse(&words(line)).unwrap().command else { panic!() };
        assert!(sync.config().unwrap_err().message.contains("a["));
    }

    #[test]
    fn a_source_that_is_no_directory_is_said() {
        for (line, message) in [
            ("chiefsync watch /proc/self/cmdline s3://bucket/job", "SRC /proc/self/cmdline: it is not a directory"),
            ("chiefsync sync /no/such s3://bucket/job", "SRC /no/such: No such file"),
            ("chiefsync verify /no/such s3://bucket/job", "SRC /no/such: No such file"),
        ] {
            let error = match try_parse(&words(line)).unwrap().command {
                Command::Watch(watch) => watch.config().unwrap_err(),
                Command::Sync(sync) => sync.config().unwrap_err(),
                Command::Verify(verify) => verify.config().unwrap_err(),
                other => panic!("{other:?}"),
            };
            assert!(error.message.contains(message) && error.hint.is_some(), "{}", error.message);
        }
    }
}
