//! The journal's file: found by its destination, locked, read line by line, set aside when it is not ours.
//!
//! `journal-<16 hex of sha256(DEST)>.jsonl` holds the lines, `….lock` beside it the lock and the holder's process id; the
//! lock has a file of its own because compaction replaces the journal.

use std::io::{self, BufRead, Read as _};
use std::path::{Path, PathBuf};

use super::line::{self, Header, Line};
use super::state::State;
use super::{Journal, JournalError};
use crate::digest::Sha256;
use crate::disk::{self, AppendFile, ReadFile};

/// Where one destination's journal lives.
#[derive(Clone, Debug)]
pub(super) struct Paths {
    pub directory: PathBuf,
    pub journal: PathBuf,
    lock: PathBuf,
}

impl Paths {
    pub fn new(directory: &Path, destination_url: &str) -> Paths {
        let hash = Sha256::of(destination_url.as_bytes()).to_hex();
        let path = |extension: &str| directory.join(format!("journal-{}.{extension}", &hash[..16]));
        Paths { directory: directory.to_owned(), journal: path("jsonl"), lock: path("lock") }
    }

    /// A name for a journal that can't be used and that somebody may want to look at.
    fn set_aside(&self) -> PathBuf {
        let name = |n: u32| {
            let mut name = self.journal.clone().into_os_string();
            name.push(format!(".bad-{n}"));
            PathBuf::from(name)
        };
        // The last one is overwritten when a hundred have piled up.
        (1..100).map(name).find(|path| disk::symlink_metadata(path).is_err()).unwrap_or_else(|| name(100))
    }
}

/// The lock, as far as this file system knows locks.
pub(super) struct Lock {
    _file: AppendFile,
    /// False where the file system has no locks (Lustre without `-o flock`): then nobody is kept out.
    pub is_exclusive: bool,
}

/// Takes the lock; the kernel lets go of it when the process ends, however it ends.
pub(super) fn lock(paths: &Paths) -> Result<Lock, OpenError> {
    let mut file = AppendFile::open(&paths.lock)?;
    let is_exclusive = match file.try_lock() {
        Ok(true) => true,
        Ok(false) => {
            let holder_pid = file.read_all().ok().and_then(|text| String::from_utf8(text).ok()?.trim().parse().ok());
            return Err(OpenError::Journal(JournalError::Locked { path: paths.lock.clone(), holder_pid }));
        }
        Err(_) => false,
    };
    if is_exclusive {
        // Only for the message of whoever finds it taken: a full disk must not cost the lock.
        let _ = file.truncate(0).and_then(|()| file.append(format!("{}\n", std::process::id()).as_bytes()));
    }
    Ok(Lock { _file: file, is_exclusive })
}

/// Why a journal can't be opened in place.
pub(super) enum OpenError {
    Journal(JournalError),
    Io(io::Error),
}

impl From<io::Error> for OpenError {
    fn from(error: io::Error) -> OpenError {
        OpenError::Io(error)
    }
}

/// What a journal's file holds.
#[derive(Default, Debug)]
pub(super) struct Contents {
    pub state: State,
    /// From the header.
    pub holder: String,
    /// Up to the end of the last whole line.
    pub whole_bytes: u64,
    /// What lies behind that: a write that a crash or a full disk cut short.
    pub torn_bytes: u64,
    /// Lines that the CRC or the content gives away.
    pub garbled_lines: u64,
    pub header_bytes: u64,
}

/// Why a file is no journal of this destination.
#[derive(Debug)]
pub(super) struct Unusable(pub String);

/// Reads `path`; `None` when there is nothing, not even a whole header.
pub(super) fn read(path: &Path, destination_url: &str) -> io::Result<Result<Option<Contents>, Unusable>> {
    let file = match ReadFile::open(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Ok(None)),
        other => other?,
    };
    file.advise_sequential();
    read_lines(file.reader(), destination_url)
}

/// The same for any source of bytes.
pub(super) fn read_lines(
    mut source: impl BufRead,
    destination_url: &str,
) -> io::Result<Result<Option<Contents>, Unusable>> {
    let mut contents = Contents::default();
    let mut buffer = Vec::with_capacity(1024);
    let mut is_header = true;
    loop {
        let len_bytes = next_line(&mut source, &mut buffer)?;
        let line = match buffer.split_last() {
            Some((b'\n', line)) => line,
            // Not even the header is whole: as good as nothing, unless it is no journal at all.
            _ if is_header && len_bytes <= line::MAX_LINE_BYTES as u64 => return Ok(Ok(None)),
            _ if is_header => return Ok(Err(Unusable("it is no journal".to_owned()))),
            _ => {
                contents.torn_bytes = len_bytes;
                return Ok(Ok(Some(contents)));
            }
        };
        contents.whole_bytes += len_bytes;
        if is_header {
            is_header = false;
            contents.header_bytes = len_bytes;
            match check_header(line, destination_url) {
                Ok(holder) => contents.holder = holder,
                Err(why) => return Ok(Err(why)),
            }
        } else {
            let line = line::checked_json(line).and_then(|json| serde_json::from_slice::<Line<'_>>(json).ok());
            if !line.is_some_and(|line| contents.state.apply(line, len_bytes)) {
                contents.garbled_lines += 1;
            }
        }
    }
}

fn check_header(line: &[u8], destination_url: &str) -> Result<String, Unusable> {
    #[derive(serde::Deserialize)]
    struct AnySchema {
        schema: u32,
    }
    let json = line::checked_json(line).ok_or_else(|| Unusable("its first line is garbled".to_owned()))?;
    let garbled = |e: serde_json::Error| Unusable(format!("its first line is garbled: {e}"));
    let schema = serde_json::from_slice::<AnySchema>(json).map_err(garbled)?.schema;
    if schema != line::SCHEMA {
        return Err(Unusable(format!("its schema is {schema}, and this version knows {}", line::SCHEMA)));
    }
    let header: Header<'_> = serde_json::from_slice(json).map_err(garbled)?;
    if header.destination != destination_url {
        return Err(Unusable(format!("it belongs to {}", header.destination)));
    }
    Ok(header.holder.into_owned())
}

/// Reads up to and with the next newline; of a line beyond the limit only the end is kept, which is garbled enough.
/// Returns its length in bytes, 0 at the end.
fn next_line(source: &mut impl BufRead, buffer: &mut Vec<u8>) -> io::Result<u64> {
    let mut len_bytes = 0;
    loop {
        buffer.clear();
        let taken = (&mut *source).take(line::MAX_LINE_BYTES as u64).read_until(b'\n', buffer)?;
        len_bytes += taken as u64;
        if taken < line::MAX_LINE_BYTES || buffer.ends_with(b"\n") {
            return Ok(len_bytes);
        }
    }
}

/// Opens the journal in its directory: lock, read, cut, compact.
pub(super) fn open(paths: &Paths, destination_url: &str, notices: &mut Vec<String>) -> Result<Journal, OpenError> {
    disk::create_dir_all(&paths.directory)?;
    let lock = lock(paths)?;
    let shown = paths.journal.display();
    let contents = match read(&paths.journal, destination_url)? {
        Ok(contents) => contents,
        Err(Unusable(why)) => {
            let aside = paths.set_aside();
            disk::rename(&paths.journal, &aside)?;
            notices.push(format!("journal {shown} was set aside as {}: {why}", aside.display()));
            None
        }
    };
    let mut file = AppendFile::open(&paths.journal)?;
    let Some(contents) = contents else {
        if file.len_bytes()? > 0 {
            notices.push(format!("journal {shown}: the torn first line was cut off"));
            file.truncate(0)?;
        }
        let mut journal = Journal::in_memory(destination_url);
        let header = journal.header_line();
        file.append(&header)?;
        journal.attach(paths.clone(), file, header.len() as u64, header.len() as u64);
        journal._lock = Some(lock);
        return Ok(journal);
    };
    if contents.torn_bytes > 0 {
        notices.push(format!("journal {shown}: a torn tail of {} bytes was cut off", contents.torn_bytes));
        file.truncate(contents.whole_bytes)?;
    }
    if contents.garbled_lines > 0 {
        let lines = contents.garbled_lines;
        notices.push(format!("journal {shown}: {lines} garbled {} dropped", if lines == 1 { "line" } else { "lines" }));
    }
    let mut journal = Journal::in_memory(destination_url);
    journal.state = contents.state;
    journal.has_gaps = contents.torn_bytes > 0 || contents.garbled_lines > 0;
    if lock.is_exclusive {
        // Without a lock another process may be using the same name right now, and the head could not tell them apart.
        journal.holder = contents.holder;
    } else {
        notices.push(format!("journal {shown}: this file system has no locks; run one chiefsync at a time here"));
    }
    journal.attach(paths.clone(), file, contents.header_bytes, contents.whole_bytes);
    journal._lock = Some(lock);
    if contents.garbled_lines > 0 {
        journal.compact();
    }
    Ok(journal)
}

/// Writes header and state in place of the journal; returns the new file and its length in bytes.
pub(super) fn rewrite(paths: &Paths, header: &[u8], state: &State) -> io::Result<(AppendFile, u64)> {
    let mut file_bytes = 0;
    disk::replace_with(&paths.journal, |out| {
        let mut buffer = header.to_vec();
        for line in state.lines() {
            line::append_line(&mut buffer, &line);
            if buffer.len() >= 128 * 1024 {
                out.write_all(&buffer)?;
                file_bytes += buffer.len() as u64;
                buffer.clear();
            }
        }
        file_bytes += buffer.len() as u64;
        out.write_all(&buffer)
    })?;
    Ok((AppendFile::open(&paths.journal)?, file_bytes))
}
