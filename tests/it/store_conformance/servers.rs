//! Real servers for the tests: got by `tests/tools/get`, started on a free port over a temporary directory, killed with the test.

use std::io::Read as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use chiefsync::store::{FixedCredentials, OpenOptions};

/// The bucket that every server here has.
pub const BUCKET: &str = "conformance";

const ACCESS_KEY: &str = "conformance-access";
const SECRET_KEY: &str = "conformance-secret";

/// A server in a process of its own.
pub struct Server {
    child: Child,
    address: SocketAddr,
    scheme: &'static str,
    /// What goes with it.
    directories: Vec<tempfile::TempDir>,
}

impl Server {
    /// MinIO over one directory.
    pub fn minio() -> Server {
        Server::start(&tool("minio"), |command, address, data| {
            command
                .args(["server", "--quiet", "--address", &address.to_string()])
                .arg(data)
                .env("MINIO_ROOT_USER", ACCESS_KEY)
                .env("MINIO_ROOT_PASSWORD", SECRET_KEY)
                .env("MINIO_BROWSER", "off");
        })
    }

    /// MinIO over TLS, with a certificate of an authority that nobody knows; and that authority's file.
    pub fn minio_with_tls() -> (Server, PathBuf) {
        let certificates = tempfile::tempdir().expect("a temporary directory");
        make_certificates(certificates.path());
        let mut server = Server::start(&tool("minio"), |command, address, data| {
            command
                .args(["server", "--quiet", "--address", &address.to_string(), "--certs-dir"])
                .arg(certificates.path())
                .arg(data)
                .env("MINIO_ROOT_USER", ACCESS_KEY)
                .env("MINIO_ROOT_PASSWORD", SECRET_KEY)
                .env("MINIO_BROWSER", "off");
        });
        server.scheme = "https";
        let authority = certificates.path().join("authority.pem");
        server.directories.push(certificates);
        (server, authority)
    }

    /// versitygw over one directory, object metadata in extended attributes.
    pub fn versitygw() -> Server {
        Server::versitygw_with(&[])
    }

    /// versitygw without metadata: it stands for stores that ignore conditions.
    pub fn versitygw_nometa() -> Server {
        Server::versitygw_with(&["--nometa"])
    }

    fn versitygw_with(options: &[&str]) -> Server {
        Server::start(&tool("versitygw"), |command, address, data| {
            command
                .args(["--port", &address.to_string(), "--quiet", "posix"])
                .args(options)
                .arg(data)
                .env("ROOT_ACCESS_KEY", ACCESS_KEY)
                .env("ROOT_SECRET_KEY", SECRET_KEY);
        })
    }

    fn start(program: &Path, configure: impl FnOnce(&mut Command, SocketAddr, &Path)) -> Server {
        let data = tempfile::tempdir().expect("a temporary directory");
        // For both servers a directory below the root is a bucket.
        std::fs::create_dir(data.path().join(BUCKET)).expect("a directory for the bucket");
        let address = free_address();
        let mut command = Command::new(program);
        configure(&mut command, address, data.path());
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("{} can't be started: {e}", program.display()));
        let mut server = Server { child, address, scheme: "http", directories: vec![data] };
        server.wait_until_it_listens();
        server
    }

    fn wait_until_it_listens(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while TcpStream::connect(self.address).is_err() {
            if let Some(status) = self.child.try_wait().expect("the server's state") {
                let mut said = String::new();
                if let Some(mut stderr) = self.child.stderr.take() {
                    let _ = stderr.read_to_string(&mut said);
                }
                panic!("the server ended at once ({status}): {said}");
            }
            assert!(Instant::now() < deadline, "the server does not listen on {}", self.address);
            std::thread::yield_now();
        }
    }

    /// How to open a store on it.
    pub fn options(&self) -> OpenOptions {
        options(format!("{}://{}", self.scheme, self.address), ACCESS_KEY, SECRET_KEY)
    }
}

/// How to open a store at an endpoint.
pub fn options(endpoint_url: String, access_key_id: &str, secret_access_key: &str) -> OpenOptions {
    OpenOptions {
        endpoint_url: Some(endpoint_url),
        region: Some("us-east-1".to_owned()),
        credentials: Some(FixedCredentials {
            access_key_id: access_key_id.to_owned(),
            secret_access_key: secret_access_key.to_owned(),
            session_token: None,
        }),
        ..OpenOptions::default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An authority and a certificate for 127.0.0.1 that it signed, under the names that MinIO looks for.
fn make_certificates(directory: &Path) {
    std::fs::write(directory.join("names"), "subjectAltName=IP:127.0.0.1").expect("a file");
    let key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
    openssl(
        directory,
        &["req", "-x509", "-subj", "/CN=authority", "-keyout", "authority.key", "-out", "authority.pem"],
        &key,
    );
    openssl(directory, &["req", "-subj", "/CN=127.0.0.1", "-keyout", "private.key", "-out", "request"], &key);
    let sign = ["x509", "-req", "-in", "request", "-CA", "authority.pem", "-CAkey", "authority.key", "-CAcreateserial"];
    openssl(directory, &sign, &["-extfile", "names", "-out", "public.crt"]);
}

fn openssl(directory: &Path, arguments: &[&str], more: &[&str]) {
    let output = Command::new("openssl")
        .args(arguments)
        .args(more)
        .current_dir(directory)
        .output()
        .unwrap_or_else(|e| panic!("this test needs openssl (Debian: apt-get install openssl): {e}"));
    assert!(output.status.success(), "openssl: {}", String::from_utf8_lossy(&output.stderr));
}

fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port")
}

/// The path of a tool; the script installs it where it is missing, and says what to do where it can't.
fn tool(name: &str) -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tools/get");
    let output = Command::new(&script)
        .arg(name)
        .stderr(Stdio::inherit())
        .output()
        .unwrap_or_else(|e| panic!("{} can't be run: {e}", script.display()));
    assert!(
        output.status.success(),
        "this test needs {name}: put it on PATH, or follow what {} says",
        script.display()
    );
    PathBuf::from(String::from_utf8(output.stdout).expect("a path").trim())
}
