//! The demo's trainer: writes what trainers write, the way they write it. It stands outside of chiefsync, so it touches
//! files as any program does, not through `disk`.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use chiefsync::clock::Duration;

/// A save every so many steps.
const STEPS_A_SAVE: u64 = 100;

/// Saves until the end.
const SAVES: u64 = 5;

/// A step takes this long.
const STEP: Duration = Duration::from_millis(20);

/// Checkpoints that stay on the volume; older ones are rotated away.
const KEPT: usize = 2;

/// The optimizer's state in a checkpoint, the final model: bytes.
const STATE_BYTES: usize = 16 << 20;
const MODEL_BYTES: usize = 24 << 20;

/// Trains into `output` until the end marker; `stop` says when to give up.
///
/// # Errors
/// The volume's own.
pub fn train(output: &Path, stop: impl Fn() -> bool) -> io::Result<()> {
    fs::create_dir_all(output.join("logs"))?;
    // The log stays open and grows: only its whole lines are worth something.
    let mut log = fs::File::create(output.join("logs/train.log"))?;
    let mut noise = Noise(1);
    let mut saved: Vec<PathBuf> = Vec::new();
    for step in 1..=SAVES * STEPS_A_SAVE {
        if stop() {
            return Ok(());
        }
        std::thread::sleep(STEP);
        #[allow(clippy::cast_precision_loss)]
        let loss = 2.5 / (1.0 + step as f64 / 80.0);
        writeln!(log, "step {step} loss {loss:.4}")?;
        if step % STEPS_A_SAVE == 0 {
            saved.push(save(output, step, loss, &mut noise)?);
            tracing::info!(step, "the trainer saved a checkpoint");
            if saved.len() > KEPT {
                let old = saved.remove(0);
                fs::remove_dir_all(&old)?;
                let name = old.file_name().unwrap_or_default().display().to_string();
                tracing::info!(checkpoint = name, "the trainer rotated a checkpoint away");
            }
        }
    }
    let model = output.join("model");
    fs::create_dir_all(&model)?;
    fs::write(model.join("config.json"), "{\"layers\": 12, \"width\": 768}\n")?;
    fs::write(model.join("model.safetensors"), noise.bytes(MODEL_BYTES))?;
    drop(log);
    fs::write(output.join("DONE"), "")?;
    tracing::info!("the trainer is done");
    Ok(())
}

/// A checkpoint is written beside its place and renamed into it, so that nobody sees half of one.
fn save(output: &Path, step: u64, loss: f64, noise: &mut Noise) -> io::Result<PathBuf> {
    let directory = output.join(format!("checkpoints/step-{step:04}"));
    let unfinished = output.join(format!("checkpoints/step-{step:04}.tmp"));
    fs::create_dir_all(unfinished.join("shards"))?;
    for shard in 0..4 {
        fs::write(unfinished.join(format!("shards/state-{shard}.bin")), noise.bytes(STATE_BYTES / 4))?;
    }
    fs::write(unfinished.join("trainer_state.json"), format!("{{\"step\": {step}, \"loss\": {loss:.4}}}\n"))?;
    fs::rename(&unfinished, &directory)?;
    // The pointer is rewritten by every save.
    let pointer = output.join("checkpoints/latest");
    fs::write(pointer.with_extension("new"), format!("step-{step:04}\n"))?;
    fs::rename(pointer.with_extension("new"), pointer)?;
    Ok(directory)
}

/// Bytes that no compression and no deduplication makes smaller (xorshift64).
struct Noise(u64);

impl Noise {
    fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(count + 8);
        while bytes.len() < count {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            bytes.extend_from_slice(&self.0.to_le_bytes());
        }
        bytes.truncate(count);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trainer_that_is_stopped_leaves_no_marker() {
        let output = tempfile::tempdir().unwrap();
        train(output.path(), || true).unwrap();
        assert!(output.path().join("logs/train.log").exists() && !output.path().join("DONE").exists());
    }

    #[test]
    fn a_checkpoint_is_whole_once_it_has_its_name() {
        let output = tempfile::tempdir().unwrap();
        let directory = save(output.path(), 7, 0.5, &mut Noise(1)).unwrap();
        assert_eq!(directory, output.path().join("checkpoints/step-0007"));
        assert_eq!(fs::metadata(directory.join("shards/state-3.bin")).unwrap().len(), STATE_BYTES as u64 / 4);
        assert_eq!(fs::read_to_string(output.path().join("checkpoints/latest")).unwrap(), "step-0007\n");
        assert!(!output.path().join("checkpoints/step-0007.tmp").exists());
    }
}
