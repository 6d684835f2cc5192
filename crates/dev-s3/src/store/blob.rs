//! Content: where a body goes while it comes in, what it is once stored, and how it is read back.

use bytes::Bytes;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The content of an object or a part.
#[derive(Clone, Debug)]
pub(crate) enum Blob {
    /// One piece for each part.
    Memory(Vec<Bytes>),
    /// A file that the store owns.
    File(PathBuf),
    /// Nobody kept it.
    Discarded,
}

/// A file that vanishes unless it is given its place: an upload that breaks off leaves nothing.
#[derive(Debug)]
pub(crate) struct TempFile {
    path: Option<PathBuf>,
}

impl TempFile {
    pub fn create(path: PathBuf) -> io::Result<(TempFile, File)> {
        let file = File::options().write(true).create_new(true).open(&path)?;
        Ok((TempFile { path: Some(path) }, file))
    }

    pub fn move_to(&mut self, place: &Path) -> io::Result<()> {
        if let Some(path) = &self.path {
            std::fs::rename(path, place)?;
            self.path = None;
        }
        Ok(())
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            // Nothing depends on it: the next start sweeps the folder.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Content that has been received but has no name yet.
#[derive(Debug)]
pub(crate) enum Draft {
    Memory(Vec<Bytes>),
    File(TempFile),
    Discarded,
}

/// Where a body goes while it comes in.
///
/// Files are written in place, without a hop to another thread: they go to the page cache, which takes a block
/// about as fast as a channel hands it over.
pub(crate) enum Sink {
    Memory(Vec<u8>),
    File { temp: TempFile, file: io::BufWriter<File> },
    Discard,
}

impl Sink {
    const BUFFER_BYTES: usize = 256 << 10;
    /// Room that is reserved on the word of a Content-Length alone.
    const TRUSTED_BYTES: u64 = 64 << 20;

    pub fn memory(expected_bytes: u64) -> Sink {
        Sink::Memory(Vec::with_capacity(expected_bytes.min(Self::TRUSTED_BYTES) as usize))
    }

    pub fn file(path: PathBuf) -> io::Result<Sink> {
        let (temp, file) = TempFile::create(path)?;
        Ok(Sink::File { temp, file: io::BufWriter::with_capacity(Self::BUFFER_BYTES, file) })
    }

    pub fn write(&mut self, data: &[u8]) -> io::Result<()> {
        match self {
            Sink::Memory(content) => content.extend_from_slice(data),
            Sink::File { file, .. } => file.write_all(data)?,
            Sink::Discard => {}
        }
        Ok(())
    }

    pub fn finish(self) -> io::Result<Draft> {
        match self {
            Sink::Memory(content) => Ok(Draft::Memory(vec![content.into()])),
            Sink::File { temp, mut file } => {
                file.flush()?;
                Ok(Draft::File(temp))
            }
            Sink::Discard => Ok(Draft::Discarded),
        }
    }
}

/// Content opened for reading: stays what it was although its object is replaced or deleted meanwhile.
#[derive(Debug)]
pub(crate) enum Reader {
    Memory(Vec<Bytes>),
    File {
        file: File,
        left: u64,
    },
    /// Discarded content reads as zeros, as many as there were bytes.
    Zeros(u64),
}

impl Reader {
    const BLOCK_BYTES: u64 = 256 << 10;

    pub fn open(blob: &Blob, range: Range<u64>) -> io::Result<Reader> {
        let length = range.end - range.start;
        match blob {
            Blob::Memory(pieces) => Ok(Reader::Memory(slice(pieces, range))),
            Blob::File(path) => {
                let mut file = File::open(path)?;
                file.seek(SeekFrom::Start(range.start))?;
                Ok(Reader::File { file, left: length })
            }
            Blob::Discarded => Ok(Reader::Zeros(length)),
        }
    }

    /// The next block, or `None` at the end.
    pub fn next_block(&mut self) -> io::Result<Option<Bytes>> {
        match self {
            Reader::Memory(pieces) => Ok(if pieces.is_empty() { None } else { Some(pieces.remove(0)) }),
            Reader::File { left: 0, .. } | Reader::Zeros(0) => Ok(None),
            Reader::File { file, left } => {
                let mut block = vec![0; (*left).min(Self::BLOCK_BYTES) as usize];
                file.read_exact(&mut block)?;
                *left -= block.len() as u64;
                Ok(Some(block.into()))
            }
            Reader::Zeros(left) => {
                static ZEROS: [u8; Reader::BLOCK_BYTES as usize] = [0; Reader::BLOCK_BYTES as usize];
                let block = &ZEROS[..(*left).min(Self::BLOCK_BYTES) as usize];
                *left -= block.len() as u64;
                Ok(Some(Bytes::from_static(block)))
            }
        }
    }

    pub fn read_all(mut self) -> io::Result<Vec<u8>> {
        let mut content = Vec::new();
        while let Some(block) = self.next_block()? {
            content.extend_from_slice(&block);
        }
        Ok(content)
    }
}

fn slice(pieces: &[Bytes], range: Range<u64>) -> Vec<Bytes> {
    let mut start = 0;
    let mut found = Vec::new();
    for piece in pieces {
        let end = start + piece.len() as u64;
        let (from, to) = (range.start.max(start), range.end.min(end));
        if from < to {
            found.push(piece.slice((from - start) as usize..(to - start) as usize));
        }
        start = end;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_cross_pieces() {
        let blob = Blob::Memory(vec![Bytes::from_static(b"abc"), Bytes::new(), Bytes::from_static(b"defg")]);
        let read = |range| Reader::open(&blob, range).and_then(Reader::read_all).expect("memory can be read");
        assert_eq!(read(0..7), b"abcdefg");
        assert_eq!(read(2..5), b"cde");
        assert_eq!(read(3..3), b"");
        assert_eq!(read(6..7), b"g");
    }
}
