//! A running server: started, asked, looked into, stopped.

use crate::checksum::{Checksum, etag_of};
use crate::clock;
use crate::conditions::Conditions;
use crate::faults::Faults;
use crate::front::Front;
use crate::listener::listen;
use crate::operation::Operation;
use crate::options::Options;
use crate::s3::{Api, Keys};
use crate::store::{Headers, NewObject, Store};
use crate::traffic::{Count, Request, Traffic};
use s3s::config::{S3Config, StaticConfigProvider};
use s3s::service::S3ServiceBuilder;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::SystemTime;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// A running server. It stops when this is dropped.
pub struct Server {
    address: SocketAddr,
    access_key: String,
    secret_key: String,
    store: Arc<Store>,
    faults: Faults,
    traffic: Arc<Traffic>,
    stop: watch::Sender<bool>,
    /// Turns true when the port is free again.
    stopped: watch::Receiver<bool>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// An object as a test sees it from inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredObject {
    /// Its key.
    pub key: String,
    /// Its length in bytes.
    pub size: u64,
    /// Its ETag, without quotes.
    pub etag: String,
    /// When it was written, in whole seconds.
    pub modified: SystemTime,
    /// The checksum that it was uploaded with.
    pub checksum: Option<Checksum>,
    /// `x-amz-meta-*`, by the name behind the prefix.
    pub metadata: BTreeMap<String, String>,
    /// The sizes of its parts, if it was uploaded in parts.
    pub parts: Vec<u64>,
}

/// An upload under way as a test sees it from inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredUpload {
    /// Its bucket.
    pub bucket: String,
    /// The key that it will become.
    pub key: String,
    /// Its id.
    pub id: String,
    /// The sizes of the parts that are there, by number.
    pub parts: BTreeMap<i32, u64>,
}

impl Server {
    /// Starts a server on the runtime of the caller.
    pub async fn start(options: Options) -> io::Result<Server> {
        let listener = TcpListener::bind(options.address).await?;
        let address = listener.local_addr()?;
        let store = Arc::new(Store::open(&options.medium, options.min_part_bytes)?);
        for bucket in &options.buckets {
            if !s3s::path::check_bucket_name(bucket) {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{bucket} is no name for a bucket")));
            }
            store.create_bucket(bucket).map_err(io::Error::other)?;
        }
        let faults = Faults::default();
        let traffic = Arc::new(Traffic::new(options.log_limit));

        let mut service = S3ServiceBuilder::new(Api { store: Arc::clone(&store), faults: faults.clone() });
        service.set_auth(Keys { access_key: options.access_key.clone(), secret_key: options.secret_key.clone() });
        let mut config = S3Config::default();
        // The clock that counts is the one that a fault may have set off, and the front compares that.
        config.presigned_url_max_skew_time_secs = u32::MAX;
        service.set_config(Arc::new(StaticConfigProvider::new(Arc::new(config))));
        let front = Front {
            service: service.build(),
            store: Arc::clone(&store),
            faults: faults.clone(),
            traffic: Arc::clone(&traffic),
        };

        let (stop, stop_seen) = watch::channel(false);
        let (stopped_say, stopped) = watch::channel(false);
        tokio::spawn(async move {
            listen(listener, Arc::new(front), stop_seen).await;
            stopped_say.send_replace(true);
        });
        Ok(Server {
            address,
            access_key: options.access_key,
            secret_key: options.secret_key,
            store,
            faults,
            traffic,
            stop,
            stopped,
            thread: Mutex::new(None),
        })
    }

    /// Starts a server on a thread with a runtime of its own: for callers without one, and for those whose own
    /// runtime should not share its threads.
    pub fn spawn_thread(options: Options) -> io::Result<Server> {
        let (send, receive) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new().name("dev-s3".into()).spawn(move || {
            let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => return drop(send.send(Err(error))),
            };
            runtime.block_on(async {
                match Server::start(options).await {
                    Ok(server) => {
                        let stopped = server.stopped.clone();
                        // A receiver that is gone drops the server, which stops it.
                        drop(send.send(Ok(server)));
                        wait_for(stopped).await;
                    }
                    Err(error) => drop(send.send(Err(error))),
                }
            });
            runtime.shutdown_background();
        })?;
        let server = receive.recv().map_err(io::Error::other)??;
        *server.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(server)
    }

    /// Stops: ends every connection and frees the port. Returns at once if the server runs on the caller's
    /// runtime (see [`Server::stopped`]), and when all is done if it has a thread of its own.
    pub fn stop(&self) {
        self.store.close();
        self.stop.send_replace(true);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A panic of that thread has been printed where it happened.
            let _ = thread.join();
        }
    }

    /// Waits until a server that was stopped has let go of its port and connections.
    pub async fn stopped(&self) {
        wait_for(self.stopped.clone()).await;
    }

    /// Where it listens, `http://127.0.0.1:PORT`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The same as an address, for another server to take its place.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The access key that it accepts.
    pub fn access_key(&self) -> &str {
        &self.access_key
    }

    /// The secret key that belongs to it.
    pub fn secret_key(&self) -> &str {
        &self.secret_key
    }

    /// The handle to its faults and switches.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    // What came in

    /// The requests that are over, oldest first.
    pub fn requests(&self) -> Vec<Request> {
        self.traffic.requests()
    }

    /// Sums over them, by operation.
    pub fn counts(&self) -> BTreeMap<Operation, Count> {
        self.traffic.counts()
    }

    /// The sum for one operation.
    pub fn count(&self, operation: Operation) -> Count {
        self.traffic.counts().get(&operation).copied().unwrap_or_default()
    }

    /// Forgets the log and the counts.
    pub fn clear_requests(&self) {
        self.traffic.clear();
    }

    // The direct door: no HTTP, no faults, no entry in the log

    /// All objects of a bucket, sorted by key; none if there is no such bucket.
    pub fn objects(&self, bucket: &str) -> Vec<StoredObject> {
        let all = self.store.with_objects(bucket, |objects| {
            let seen = objects.iter().map(|(key, object)| StoredObject {
                key: key.clone(),
                size: object.info.size,
                etag: object.info.etag.clone(),
                modified: object.info.modified,
                checksum: object.info.checksum.clone(),
                metadata: object.info.headers.user.clone(),
                parts: object.info.parts.clone(),
            });
            seen.collect()
        });
        all.unwrap_or_default()
    }

    /// The keys of a bucket, sorted.
    pub fn keys(&self, bucket: &str) -> Vec<String> {
        self.objects(bucket).into_iter().map(|object| object.key).collect()
    }

    /// An object's content, if it is there.
    pub fn object(&self, bucket: &str, key: &str) -> Option<Vec<u8>> {
        let (_, reader) = self.store.open_object(bucket, key, |info| Ok(0..info.size)).ok()?;
        reader.read_all().ok()
    }

    /// The uploads under way in all buckets.
    pub fn uploads(&self) -> Vec<StoredUpload> {
        let mut seen = Vec::new();
        for (bucket, _) in self.store.buckets() {
            for (id, upload) in self.store.uploads(&bucket).unwrap_or_default() {
                let parts = upload.parts.iter().map(|(number, part)| (*number, part.info.size)).collect();
                seen.push(StoredUpload { bucket: bucket.clone(), key: upload.info.key, id, parts });
            }
        }
        seen
    }

    /// Makes a bucket; one that is there stays.
    pub fn create_bucket(&self, bucket: &str) -> io::Result<()> {
        self.store.create_bucket(bucket).map(|_| ()).map_err(io::Error::other)
    }

    /// Writes an object behind everyone's back, as a foreign writer would; answers its ETag.
    pub fn put_object_raw(&self, bucket: &str, key: &str, content: &[u8]) -> io::Result<String> {
        let put = || {
            let mut sink = self.store.sink(key, content.len() as u64)?;
            sink.write(content).map_err(crate::store::io_error)?;
            let new = NewObject {
                draft: sink.finish().map_err(crate::store::io_error)?,
                size: content.len() as u64,
                etag: etag_of(content),
                checksum: None,
                headers: Headers::default(),
                parts: Vec::new(),
            };
            self.store.put(bucket, key, new, &Conditions::default())
        };
        put().map(|object| object.info.etag.clone()).map_err(io::Error::other)
    }

    /// Removes an object behind everyone's back; says whether it was there.
    pub fn delete(&self, bucket: &str, key: &str) -> io::Result<bool> {
        self.store.delete(bucket, key, &Conditions::default()).map_err(io::Error::other)
    }

    /// The time that the server believes it is.
    pub fn time(&self) -> SystemTime {
        clock::skewed(self.faults.clock_skew_secs())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

async fn wait_for(mut stopped: watch::Receiver<bool>) {
    // An error means that the serving task is gone with its runtime, which is stopped as well.
    let _ = stopped.wait_for(|stopped| *stopped).await;
}
