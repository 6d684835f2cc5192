//! `chiefsync demo`: the whole story on this machine, told with the commands that a user would type.
//!
//! The trainer is a thread that writes real files; the bucket is a directory behind an S3 server in this process; the
//! commands are parsed and run as if they had been typed. What they leave stays, so that people can look.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::Args;

use chiefsync::clock::Duration;
use chiefsync::config::{Destination, Placeholders};
use chiefsync::disk;
use chiefsync::exit::{Ending, ExitCode, Signal};
use chiefsync::store::{FixedCredentials, OpenOptions};

use super::screen::Screen;
use super::session::{Session, reach_for_reading};
use super::{Command, signals, table};

mod trainer;

/// The bucket, the prefix in it, and both as a user types them.
const BUCKET: &str = "demo";
const PREFIX: &str = "my-job";
const DESTINATION: &str = "s3://demo/my-job/";

/// The server takes any; this is what clients default to.
const REGION: &str = "us-east-1";

/// The whole story on this machine: embedded S3, a sample trainer, the sidecar, the proof.
#[derive(Debug, Args)]
pub struct Demo {
    /// Where it works; a new directory below the system's temporary one, if not given.
    #[arg(long, value_name = "DIR", env = "CHIEFSYNC_DEMO_DIR")]
    dir: Option<PathBuf>,
    /// How long the trainer trains.
    #[arg(long, value_name = "N", default_value = "10", value_parser = clap::value_parser!(u64).range(1..=600), env = "CHIEFSYNC_DEMO_SECONDS")]
    seconds: u64,
}

/// Where the demo works.
struct Place {
    root: PathBuf,
    /// The chief's output directory.
    output: PathBuf,
    /// The S3 server's directory.
    s3: PathBuf,
}

impl Demo {
    /// Tells it.
    pub fn run(&self, screen: &Screen) -> Ending {
        let place = match self.place() {
            Ok(place) => place,
            Err(ending) => return ending,
        };
        let server = match dev_s3::Server::spawn_thread(dev_s3::Options::directory(&place.s3).bucket(BUCKET)) {
            Ok(server) => server,
            Err(error) => return Ending::fault(format!("the embedded S3 server doesn't start: {error}")),
        };
        let (endpoint, access_key, secret_key) = (server.endpoint(), server.access_key(), server.secret_key());
        screen.tell(&format!(
            "The chief of a training job writes its results to a volume; chiefsync stands beside it and carries them to \
             S3.\nHere both run on this machine, with an S3 server in this very process. While it runs, any S3 client can \
             look:\n\n  AWS_ENDPOINT_URL={endpoint} AWS_REGION={REGION} AWS_ACCESS_KEY_ID={access_key} \
             AWS_SECRET_ACCESS_KEY={secret_key} \\\n    aws s3 ls --recursive {DESTINATION}"
        ));
        let options = OpenOptions {
            endpoint_url: Some(endpoint),
            region: Some(REGION.to_owned()),
            credentials: Some(FixedCredentials {
                access_key_id: access_key.to_owned(),
                secret_access_key: secret_key.to_owned(),
                session_token: None,
            }),
            ..OpenOptions::default()
        };
        let ending = tell(screen, &place, Duration::from_secs(self.seconds), &options);
        server.stop();
        screen.tell(&format!(
            "\nThe trainer's files are in   {}\nThe bucket's objects are in  {}\nRemove {} when you have seen enough; nothing \
             runs there any more.",
            super::shown(&place.output),
            super::shown(&place.s3.join(BUCKET).join(PREFIX)),
            super::shown(&place.root),
        ));
        ending
    }

    fn place(&self) -> Result<Place, Ending> {
        let fresh = || std::env::temp_dir().join(format!("chiefsync-demo-{}", std::process::id()));
        let root = self.dir.clone().unwrap_or_else(fresh);
        let root = std::path::absolute(&root).unwrap_or(root);
        let place = Place { output: root.join("output"), s3: root.join("s3"), root };
        for directory in [&place.output, &place.s3] {
            if disk::symlink_metadata(directory).is_ok() {
                let hint = "the demo begins afresh: name another directory with --dir, or remove that one";
                return Err(Ending::usage(format!("{} is there already", super::shown(directory)), hint));
            }
            if let Err(error) = disk::create_dir_all(directory) {
                let what = format!("{}: {error}", super::shown(directory));
                return Err(Ending::usage(what, "name a directory that can be written with --dir"));
            }
        }
        Ok(place)
    }
}

/// The story: each act is a command, and ends it if it fails.
fn tell(screen: &Screen, place: &Place, training: Duration, options: &OpenOptions) -> Ending {
    let stopped = match signals::listen(screen) {
        Ok(stopped) => stopped,
        Err(error) => return Ending::fault(format!("signals can't be heard: {error}")),
    };
    screen.tell(
        "\n1. The trainer begins: a log that stays open and grows, every now and then a checkpoint that is renamed into \
         place,\n   and a pointer to the newest. It keeps the last two. The sidecar follows it until it writes DONE.",
    );
    let output = place.output.clone();
    let trainer = std::thread::spawn(move || trainer::train(&output, training, || *stopped.borrow() != Signal::Run));
    let watch =
        ["watch", "--growing-interval", "2s", "--idle-deadline", "1m", "--restart-policy", "Never", "--grace", "6s"];
    let ending = act(screen, &watch, Some(&place.output), options);
    match trainer.join() {
        Ok(Ok(())) => {}
        Ok(Err(error)) => return Ending::fault(format!("the trainer can't write: {error}")),
        Err(_) => return Ending::fault("the trainer panicked"),
    }
    if ending.code != ExitCode::Proven {
        return ending;
    }

    screen.tell(
        "\n2. That was a promise: every file that was there at DONE is in the bucket. Anybody can check it, now or later: \
         each\n   object is downloaded, hashed, and compared with the manifest that the run left, and with the disk.",
    );
    let ending = act(screen, &["verify", "--deep"], Some(&place.output), options);
    if ending.code != ExitCode::Proven {
        return ending;
    }

    screen.tell(
        "\n3. One small object, the head, says what counts: which run this is, and how it ended. Readers trust it, and no \
         listing.",
    );
    let ending = act(screen, &["ls"], None, options);
    if ending.code != ExitCode::Proven {
        return ending;
    }

    screen.tell(
        "\n4. The bucket is the volume's tree, for any S3 client. What the trainer rotated away is still there: nothing is\n   \
         deleted because it vanished from the volume.\n",
    );
    let destination = match Destination::parse(DESTINATION, &Placeholders::default(), false) {
        Ok(destination) => destination,
        Err(error) => return error.into(),
    };
    let options = options.clone();
    Session::reading().run(screen, move |metrics, _| async move {
        let store = match reach_for_reading(&destination, &options, &metrics).await {
            Ok(store) => store,
            Err(ending) => return ending,
        };
        match table::print_objects(&store).await {
            Ok(()) => Ending::new(ExitCode::Proven, "every file is in the bucket, checked, and so is the proof"),
            Err(ending) => ending,
        }
    })
}

/// Shows a command line, parses it as if it had been typed, and runs it against the demo's server.
fn act(screen: &Screen, words: &[&str], source: Option<&Path>, options: &OpenOptions) -> Ending {
    let mut typed: Vec<OsString> = ["chiefsync"].iter().chain(words).map(OsString::from).collect();
    typed.extend(source.map(|source| source.as_os_str().to_owned()));
    typed.push(DESTINATION.into());
    let shown: Vec<_> = typed.iter().map(|word| super::shown(Path::new(word))).collect();
    screen.tell(&format!("\n$ {}", shown.join(" ")));
    let options = options.clone();
    let ending = match super::try_parse(&typed).map(|cli| cli.command) {
        Ok(Command::Watch(command)) => command.run_with(screen, options),
        Ok(Command::Verify(command)) => command.run_with(screen, options),
        Ok(Command::Ls(command)) => command.run_with(screen, options),
        Ok(_) => Ending::fault("the demo knows no such act"),
        // A variable that is set to nonsense breaks the demo's commands, too.
        Err(error) => super::usage_ending(&error),
    };
    if ending.code == ExitCode::Proven && !ending.summary.is_empty() {
        screen.tell(&format!("ok: {}", ending.summary));
    }
    ending
}

#[cfg(test)]
mod tests {
    use super::super::{Global, LogFormat};
    use super::*;

    fn screen() -> Screen {
        Screen::new(Global { silent: true, verbose: 0, log_format: LogFormat::Text })
    }

    /// The story ends well, and what it leaves is what it says.
    #[test]
    fn the_story_ends_with_the_proof() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("demo");
        let demo = Demo { dir: Some(root.clone()), seconds: 1 };
        let ending = demo.run(&screen());
        assert_eq!(ending.code, ExitCode::Proven, "{ending:?}");
        let (output, bucket) = (root.join("output"), root.join("s3/demo/my-job"));
        let read =
            |path: PathBuf| disk::read_small(&path, 64 << 20).map_err(|error| format!("{}: {error}", path.display()));
        for name in ["DONE", "model/model.safetensors", "logs/events.jsonl", "checkpoints/checkpoint"] {
            assert_eq!(read(bucket.join(name)), read(output.join(name)), "{name}");
        }
        // Rotated away there, kept here.
        assert!(read(output.join("checkpoints/step-0100/shard-0.bin")).is_err());
        let again = demo.run(&screen());
        assert_eq!(again.code, ExitCode::Usage, "{again:?}");
    }
}
