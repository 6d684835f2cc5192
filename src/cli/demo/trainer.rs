//! The demo's trainer: writes what trainers write, the way they write it. It stands outside of chiefsync, so it touches
//! files as any program does, not through `disk`.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use chiefsync::clock::{self, Duration};

/// A save every so many steps.
const STEPS_A_SAVE: u64 = 100;

/// Saves until the end.
const SAVES: u64 = 5;

/// Checkpoints that stay on the volume; older ones are rotated away.
const KEPT: usize = 2;

/// A checkpoint's shards, of so many bytes each.
const SHARDS: usize = 2;
const SHARD_BYTES: usize = 6 << 20;

/// The final model: three parts of an upload.
const MODEL_BYTES: usize = 24 << 20;

/// Trains into `output` for about `training`, until the end marker: DONE, or FAILED where it can't go on. `stop` says when
/// to leave without any.
///
/// # Errors
/// The volume's own.
pub fn train(output: &Path, training: Duration, stop: impl Fn() -> bool) -> io::Result<()> {
    let trained = write_all(output, training, stop);
    if trained.is_err() {
        // It may be the volume that is broken: then nothing can be left there either.
        let _ = File::create(output.join("FAILED"));
    }
    trained
}

fn write_all(output: &Path, training: Duration, stop: impl Fn() -> bool) -> io::Result<()> {
    fs::create_dir_all(output.join("logs"))?;
    let mut events = File::create(output.join("logs/events.jsonl"))?;
    let mut noise = Noise(1);
    let mut saved: Vec<PathBuf> = Vec::new();
    let started = clock::now();
    let steps = SAVES * STEPS_A_SAVE;
    for step in 1..=steps {
        if stop() {
            return Ok(());
        }
        let due = training.mul_f64(fraction(step, steps));
        std::thread::sleep(due.saturating_sub(started.elapsed()));
        let loss = 2.5 / (1.0 + 6.0 * fraction(step, steps));
        writeln!(events, "{{\"step\": {step}, \"loss\": {loss:.4}}}")?;
        if step % STEPS_A_SAVE == 0 {
            saved.push(save(output, step, loss, &mut noise)?);
            tracing::info!(step, "trainer: checkpoint saved");
            if saved.len() > KEPT {
                let old = saved.remove(0);
                fs::remove_dir_all(&old)?;
                let name = old.file_name().unwrap_or_default().display().to_string();
                tracing::info!(checkpoint = name, "trainer: old checkpoint rotated away");
            }
        }
    }
    drop(events);
    let model = output.join("model");
    fs::create_dir_all(&model)?;
    fs::write(model.join("config.json"), "{\"layers\": 12, \"width\": 768}\n")?;
    fs::write(model.join("model.safetensors"), noise.bytes(MODEL_BYTES))?;
    tracing::info!("trainer: final model written; done");
    File::create(output.join("DONE")).map(drop)
}

#[allow(clippy::cast_precision_loss)]
fn fraction(step: u64, steps: u64) -> f64 {
    step as f64 / steps as f64
}

/// A checkpoint is written beside its place and renamed into it, so that nobody sees half of one.
fn save(output: &Path, step: u64, loss: f64, noise: &mut Noise) -> io::Result<PathBuf> {
    let checkpoints = output.join("checkpoints");
    let name = format!("step-{step:04}");
    let (directory, unfinished) = (checkpoints.join(&name), checkpoints.join(format!("{name}.tmp")));
    fs::create_dir_all(&unfinished)?;
    for shard in 0..SHARDS {
        fs::write(unfinished.join(format!("shard-{shard}.bin")), noise.bytes(SHARD_BYTES))?;
    }
    fs::write(unfinished.join("trainer_state.json"), format!("{{\"step\": {step}, \"loss\": {loss:.4}}}\n"))?;
    fs::rename(&unfinished, &directory)?;
    // The pointer is rewritten by every save.
    let pointer = checkpoints.join("checkpoint");
    fs::write(pointer.with_extension("tmp"), format!("model_checkpoint_path: \"{name}\"\n"))?;
    fs::rename(pointer.with_extension("tmp"), pointer)?;
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
        train(output.path(), Duration::ZERO, || true).unwrap();
        assert!(output.path().join("logs/events.jsonl").exists() && !output.path().join("DONE").exists());
    }

    #[test]
    fn a_trainer_that_cannot_write_says_so() {
        let output = tempfile::tempdir().unwrap();
        fs::write(output.path().join("checkpoints"), "in the way").unwrap();
        train(output.path(), Duration::ZERO, || false).unwrap_err();
        assert!(output.path().join("FAILED").exists() && !output.path().join("DONE").exists());
    }

    #[test]
    fn a_checkpoint_is_whole_once_it_has_its_name() {
        let output = tempfile::tempdir().unwrap();
        let directory = save(output.path(), 7, 0.5, &mut Noise(1)).unwrap();
        assert_eq!(directory, output.path().join("checkpoints/step-0007"));
        assert_eq!(fs::metadata(directory.join("shard-1.bin")).unwrap().len(), SHARD_BYTES as u64);
        let pointer = fs::read_to_string(output.path().join("checkpoints/checkpoint")).unwrap();
        assert_eq!(pointer, "model_checkpoint_path: \"step-0007\"\n");
        assert!(!output.path().join("checkpoints/step-0007.tmp").exists());
    }
}
