//! A directory as medium: content in files, everything else in one log a bucket.
//!
//! ```text
//! DIR/<bucket>/<key>              objects, wherever the key can be a path
//! DIR/.dev-s3/<bucket>.log        a JSON line for each change; replayed and rewritten at start
//! DIR/.dev-s3/objects/<bucket>/   objects whose key can't be a path: `a//b`, `..`, `a` beside `a/b`, long names
//! DIR/.dev-s3/parts/              parts of uploads under way
//! DIR/.dev-s3/tmp/                bodies on their way in; swept at start
//! ```
//!
//! A file gets its place before its line is written. If the server dies in between, the next start finds a file
//! that isn't what the log says and takes it for what it is: its size and MD5 anew.

use super::blob::{Blob, TempFile};
use super::multipart::{Part, PartInfo, Upload, UploadInfo};
use super::{Bucket, Object, ObjectInfo};
use crate::checksum::{etag_of, hex};
use s3s::crypto::{Checksum as _, Sha256};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

/// One line of a bucket's log.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "snake_case")]
pub(super) enum Record {
    Bucket { created: SystemTime },
    Put { key: String, info: ObjectInfo, file: PathBuf, stamp: Stamp },
    Delete { key: String },
    Upload { id: String, info: UploadInfo },
    Part { id: String, number: i32, info: PartInfo, file: PathBuf },
    UploadGone { id: String },
}

/// What a file looked like when it got its place: tells whether it is still the one that the log means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stamp {
    size: u64,
    mtime: i64,
    mtime_nsec: i64,
}

impl Stamp {
    fn of(path: &Path) -> io::Result<Stamp> {
        let meta = fs::metadata(path)?;
        Ok(Stamp { size: meta.size(), mtime: meta.mtime(), mtime_nsec: meta.mtime_nsec() })
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Directory {
    root: PathBuf,
    logs: Mutex<BTreeMap<String, File>>,
}

impl Directory {
    pub fn open(root: &Path) -> io::Result<(Directory, BTreeMap<String, Bucket>)> {
        let directory = Directory { root: root.to_owned(), logs: Mutex::default() };
        let aside = directory.aside();
        fs::create_dir_all(aside.join("parts"))?;
        match fs::remove_dir_all(aside.join("tmp")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => fs::create_dir(aside.join("tmp"))?,
        }
        let mut buckets = BTreeMap::new();
        for entry in fs::read_dir(&aside)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(".log"));
            if let Some(name) = name {
                let bucket = directory.load(name, &path)?;
                buckets.insert(name.to_owned(), bucket);
            }
        }
        directory.sweep_parts(&buckets)?;
        Ok((directory, buckets))
    }

    /// A new name for a body on its way in.
    pub fn temporary(&self, serial: u64) -> PathBuf {
        self.aside().join("tmp").join(format!("{serial}"))
    }

    /// Moves content to its place and writes that down.
    pub fn put(
        &self,
        bucket: &str,
        key: &str,
        mut temp: TempFile,
        info: &ObjectInfo,
        old: Option<&Blob>,
    ) -> io::Result<Blob> {
        let natural = self.natural_place(bucket, key).filter(|place| settle(&mut temp, place).is_ok());
        let place = match natural {
            Some(place) => place,
            None => {
                let place = self.hidden_place(bucket, key);
                settle(&mut temp, &place)?;
                place
            }
        };
        let stamp = Stamp::of(&place)?;
        let file = self.relative(&place);
        self.record(bucket, &Record::Put { key: key.into(), info: info.clone(), file, stamp })?;
        if let Some(Blob::File(old)) = old
            && *old != place
        {
            remove(old)?;
        }
        Ok(Blob::File(place))
    }

    pub fn delete(&self, bucket: &str, key: &str, blob: &Blob) -> io::Result<()> {
        self.record(bucket, &Record::Delete { key: key.into() })?;
        if let Blob::File(path) = blob {
            remove(path)?;
            self.remove_empty_parents(bucket, path);
        }
        Ok(())
    }

    #[expect(clippy::too_many_arguments, reason = "each is one field of the line that it writes")]
    pub fn put_part(
        &self,
        bucket: &str,
        id: &str,
        number: i32,
        serial: u64,
        mut temp: TempFile,
        info: &PartInfo,
        old: Option<&Blob>,
    ) -> io::Result<Blob> {
        // A part that comes again gets a new file: whoever still reads the old one keeps it.
        let place = self.aside().join("parts").join(format!("{id}.{number}.{serial}.{}", info.etag));
        temp.move_to(&place)?;
        let file = self.relative(&place);
        self.record(bucket, &Record::Part { id: id.into(), number, info: info.clone(), file })?;
        if let Some(Blob::File(old)) = old {
            remove(old)?;
        }
        Ok(Blob::File(place))
    }

    pub fn forget_upload<'a>(&self, bucket: &str, id: &str, parts: impl Iterator<Item = &'a Blob>) -> io::Result<()> {
        self.record(bucket, &Record::UploadGone { id: id.into() })?;
        for part in parts {
            if let Blob::File(path) = part {
                remove(path)?;
            }
        }
        Ok(())
    }

    /// Appends one line to a bucket's log.
    pub fn record(&self, bucket: &str, record: &Record) -> io::Result<()> {
        let mut line = serde_json::to_vec(record)?;
        line.push(b'\n');
        let mut logs = self.logs.lock().unwrap_or_else(PoisonError::into_inner);
        if !logs.contains_key(bucket) {
            let log = File::options().create(true).append(true).open(self.log_path(bucket))?;
            logs.insert(bucket.into(), log);
        }
        match logs.get_mut(bucket) {
            Some(log) => log.write_all(&line),
            None => Ok(()),
        }
    }

    // Start

    /// Replays a log, compares it with the files, and writes it anew.
    fn load(&self, name: &str, path: &Path) -> io::Result<Bucket> {
        let mut bucket = Bucket { created: SystemTime::UNIX_EPOCH, objects: BTreeMap::new(), uploads: BTreeMap::new() };
        let mut stamps = BTreeMap::new();
        let text = fs::read(path)?;
        for line in text.split_inclusive(|byte| *byte == b'\n') {
            // The last line may be torn: it then speaks of a change that nobody was told about.
            let Ok(record) = serde_json::from_slice::<Record>(line) else {
                continue;
            };
            match record {
                Record::Bucket { created } => bucket.created = created,
                Record::Put { key, info, file, stamp } => {
                    stamps.insert(key.clone(), stamp);
                    bucket.objects.insert(key, Arc::new(Object { info, blob: Blob::File(self.root.join(file)) }));
                }
                Record::Delete { key } => {
                    bucket.objects.remove(&key);
                }
                Record::Upload { id, info } => {
                    bucket.uploads.insert(id, Upload { info, parts: BTreeMap::new() });
                }
                Record::Part { id, number, info, file } => {
                    if let Some(upload) = bucket.uploads.get_mut(&id) {
                        upload.parts.insert(number, Part { info, blob: Blob::File(self.root.join(file)) });
                    }
                }
                Record::UploadGone { id } => {
                    bucket.uploads.remove(&id);
                }
            }
        }
        for upload in bucket.uploads.values_mut() {
            upload.parts.retain(|_, part| matches!(&part.blob, Blob::File(path) if path.exists()));
        }
        let mut objects = BTreeMap::new();
        for (key, object) in std::mem::take(&mut bucket.objects) {
            let Some(object) = recognise(object, stamps.get(&key))? else {
                continue;
            };
            objects.insert(key, object);
        }
        bucket.objects = objects;
        self.rewrite(name, path, &bucket)?;
        Ok(bucket)
    }

    /// Removes parts that no upload knows: of uploads that ended just when the server did.
    fn sweep_parts(&self, buckets: &BTreeMap<String, Bucket>) -> io::Result<()> {
        let uploads = buckets.values().flat_map(|bucket| bucket.uploads.values());
        let parts = uploads.flat_map(|upload| upload.parts.values());
        let known: BTreeSet<_> = parts
            .filter_map(|part| match &part.blob {
                Blob::File(path) => Some(path),
                Blob::Memory(_) | Blob::Discarded => None,
            })
            .collect();
        for entry in fs::read_dir(self.aside().join("parts"))? {
            let path = entry?.path();
            if !known.contains(&path) {
                remove(&path)?;
            }
        }
        Ok(())
    }

    fn rewrite(&self, name: &str, path: &Path, bucket: &Bucket) -> io::Result<()> {
        let mut text = Vec::new();
        let mut line = |record: &Record| -> io::Result<()> {
            serde_json::to_writer(&mut text, record)?;
            text.push(b'\n');
            Ok(())
        };
        line(&Record::Bucket { created: bucket.created })?;
        for (key, object) in &bucket.objects {
            let Blob::File(file) = &object.blob else {
                continue;
            };
            let stamp = Stamp::of(file)?;
            let file = self.relative(file);
            line(&Record::Put { key: key.clone(), info: object.info.clone(), file, stamp })?;
        }
        for (id, upload) in &bucket.uploads {
            line(&Record::Upload { id: id.clone(), info: upload.info.clone() })?;
            for (number, part) in &upload.parts {
                let Blob::File(file) = &part.blob else {
                    continue;
                };
                let file = self.relative(file);
                line(&Record::Part { id: id.clone(), number: *number, info: part.info.clone(), file })?;
            }
        }
        let fresh = self.aside().join("tmp").join(format!("{name}.log"));
        fs::write(&fresh, text)?;
        fs::rename(fresh, path)
    }

    // Places

    fn aside(&self) -> PathBuf {
        self.root.join(".dev-s3")
    }

    fn log_path(&self, bucket: &str) -> PathBuf {
        self.aside().join(format!("{bucket}.log"))
    }

    fn relative(&self, path: &Path) -> PathBuf {
        path.strip_prefix(&self.root).unwrap_or(path).to_owned()
    }

    /// `DIR/bucket/key`, if the key can be a path that leads there and nowhere else.
    fn natural_place(&self, bucket: &str, key: &str) -> Option<PathBuf> {
        let fits = |name: &str| !matches!(name, "" | "." | "..") && name.len() <= 255 && !name.contains('\0');
        key.split('/').all(fits).then(|| self.root.join(bucket).join(key))
    }

    fn hidden_place(&self, bucket: &str, key: &str) -> PathBuf {
        self.aside().join("objects").join(bucket).join(hex(&Sha256::checksum(key.as_bytes())))
    }

    /// Folders are no objects: one that holds nothing any more would only be in the way of a key of its name.
    fn remove_empty_parents(&self, bucket: &str, path: &Path) {
        let top = self.root.join(bucket);
        for folder in path.ancestors().skip(1).take_while(|folder| folder.starts_with(&top) && *folder != top) {
            if fs::remove_dir(folder).is_err() {
                break;
            }
        }
    }
}

/// Removes a file. One that a person has removed already is as gone as it should be.
fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn settle(temp: &mut TempFile, place: &Path) -> io::Result<()> {
    if let Some(folder) = place.parent() {
        fs::create_dir_all(folder)?;
    }
    temp.move_to(place)
}

/// The object as the log says, or as its file says where that differs, or nothing where the file is gone.
fn recognise(object: Arc<Object>, stamp: Option<&Stamp>) -> io::Result<Option<Arc<Object>>> {
    let Blob::File(path) = &object.blob else {
        return Ok(None);
    };
    match Stamp::of(path) {
        Ok(found) if Some(&found) == stamp => Ok(Some(object)),
        Ok(found) => {
            let info = ObjectInfo {
                size: found.size,
                etag: etag_of(&fs::read(path)?),
                checksum: None,
                parts: Vec::new(),
                ..object.info.clone()
            };
            Ok(Some(Arc::new(Object { info, blob: object.blob.clone() })))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
