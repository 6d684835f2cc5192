//! One MinIO for the whole test process, a bucket a test.

use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::{PATIENCE, Place, tool};

const ACCESS_KEY: &str = "integration-access";
const SECRET_KEY: &str = "integration-secret";

/// Runs the server until its own stdin ends, which is when this process is gone, however it went; then cleans up.
const GUARD: &str = r#""$0" server --quiet --address "$1" "$2" >/dev/null 2>"$2.log" & server=$!
cat >/dev/null; kill -9 $server; wait $server 2>/dev/null; rm -rf "$2" "$2.log""#;

struct Minio {
    address: String,
    data: PathBuf,
    /// Holds the pipe that keeps the guard waiting.
    _guard: Child,
}

/// A fresh bucket on MinIO.
pub fn minio() -> Place {
    static SERVER: OnceLock<Minio> = OnceLock::new();
    static BUCKETS: AtomicU64 = AtomicU64::new(0);
    let server = SERVER.get_or_init(start);
    let bucket = format!("test-{}", BUCKETS.fetch_add(1, Ordering::Relaxed));
    // For MinIO a directory below the root is a bucket.
    std::fs::create_dir(server.data.join(&bucket)).expect("a directory for the bucket");
    Place {
        endpoint: format!("http://{}", server.address),
        access_key: ACCESS_KEY.to_owned(),
        secret_key: SECRET_KEY.to_owned(),
        bucket,
    }
}

fn start() -> Minio {
    let program = tool("minio");
    let address = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port").to_string();
    // The guard removes it.
    let data = super::temporary_directory().keep();
    let mut guard = Command::new("sh")
        .args(["-c", GUARD])
        .arg(program)
        .arg(&address)
        .arg(&data)
        .env("MINIO_ROOT_USER", ACCESS_KEY)
        .env("MINIO_ROOT_PASSWORD", SECRET_KEY)
        .env("MINIO_BROWSER", "off")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("a shell");
    let deadline = Instant::now() + PATIENCE;
    while TcpStream::connect(&address).is_err() {
        let said = || std::fs::read_to_string(data.with_added_extension("log")).unwrap_or_default();
        assert!(guard.try_wait().expect("the guard's state").is_none(), "MinIO ended at once: {}", said());
        assert!(Instant::now() < deadline, "MinIO does not listen on {address}: {}", said());
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    Minio { address, data, _guard: guard }
}
