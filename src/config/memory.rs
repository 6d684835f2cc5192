//! How much memory the process may use: what was typed, or what the container was given.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::disk;

/// Never more than this unless it was asked for: more doesn't upload faster.
pub const MOST_BYTES: u64 = 512 << 20;

/// Where nothing limits the process.
pub const UNLIMITED_BYTES: u64 = 64 << 20;

/// Less than this can't be kept: the process itself needs as much.
pub const LEAST_BYTES: u64 = 24 << 20;

/// Where the budget comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemorySource {
    /// `--memory`.
    Typed,
    /// A cgroup's limit, in this file.
    Cgroup {
        /// The file that holds the tightest limit.
        file: PathBuf,
        /// The limit.
        limit_bytes: u64,
    },
    /// Nothing limits the process.
    Unlimited,
}

impl fmt::Display for MemorySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemorySource::Typed => f.write_str("--memory"),
            MemorySource::Cgroup { file, limit_bytes } => {
                write!(f, "{} = {}", file.display(), super::show_size(*limit_bytes))
            }
            MemorySource::Unlimited => f.write_str("no limit found"),
        }
    }
}

/// The budget, and where it comes from: what was typed, else three quarters of the container's limit, at most 512 MiB;
/// without a limit 64 MiB.
pub fn memory_budget(typed_bytes: Option<u64>) -> (u64, MemorySource) {
    budget_below(Path::new("/"), typed_bytes)
}

fn budget_below(root: &Path, typed_bytes: Option<u64>) -> (u64, MemorySource) {
    if let Some(bytes) = typed_bytes {
        return (bytes, MemorySource::Typed);
    }
    match tightest_limit(root) {
        Some((limit_bytes, file)) => {
            ((limit_bytes / 4 * 3).min(MOST_BYTES), MemorySource::Cgroup { file, limit_bytes })
        }
        None => (UNLIMITED_BYTES, MemorySource::Unlimited),
    }
}

/// The smallest limit of the process's cgroup and those above it. `root` is `/`, but for tests.
fn tightest_limit(root: &Path) -> Option<(u64, PathBuf)> {
    let own = read(&root.join("proc/self/cgroup"))?;
    let unified = own.lines().find_map(|line| line.strip_prefix("0::"));
    let v1 = own.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        controllers.split(',').any(|name| name == "memory").then_some(path)
    });
    let v2_limit = unified.and_then(|path| walk_up(&root.join("sys/fs/cgroup"), path, "memory.max"));
    v2_limit.or_else(|| walk_up(&root.join("sys/fs/cgroup/memory"), v1?, "memory.limit_in_bytes"))
}

fn walk_up(mount: &Path, own: &str, name: &str) -> Option<(u64, PathBuf)> {
    let own = own.trim_start_matches('/');
    // Without a cgroup namespace of its own, a container sees the host's path, which is not below its mount, or one that
    // climbs out of it: what isn't there is passed over on the way up to the mount itself, the container's own cgroup.
    let below = if own.split('/').any(|segment| segment == "..") { Path::new("") } else { Path::new(own) };
    below
        .ancestors()
        .filter_map(|directory| {
            let file = mount.join(directory).join(name);
            let limit_bytes = read(&file)?.trim().parse::<u64>().ok()?;
            // cgroup v1 writes "no limit" as the largest multiple of a page.
            (limit_bytes < 1 << 60).then_some((limit_bytes, file))
        })
        .min_by_key(|(limit_bytes, _)| *limit_bytes)
}

fn read(path: &Path) -> Option<String> {
    String::from_utf8(disk::read_small(path, 64 << 10).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file system root with these files.
    fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            disk::create_dir_all(path.parent().unwrap()).unwrap();
            disk::write_atomically(&path, text.as_bytes()).unwrap();
        }
        root
    }

    fn found(files: &[(&str, &str)]) -> (u64, String) {
        let root = root(files);
        let (bytes, source) = budget_below(root.path(), None);
        (bytes >> 20, source.to_string().replace(root.path().to_str().unwrap(), ""))
    }

    #[test]
    fn what_was_typed_wins() {
        assert_eq!(budget_below(Path::new("/nowhere"), Some(17)), (17, MemorySource::Typed));
    }

    #[test]
    fn the_tightest_limit_on_the_way_up_counts() {
        let files = [
            ("proc/self/cgroup", "0::/kubepods/pod1/c1\n"),
            ("sys/fs/cgroup/kubepods/pod1/c1/memory.max", "max\n"),
            ("sys/fs/cgroup/kubepods/pod1/memory.max", "134217728\n"),
            ("sys/fs/cgroup/kubepods/memory.max", "1073741824\n"),
        ];
        assert_eq!(found(&files), (96, "/sys/fs/cgroup/kubepods/pod1/memory.max = 128 MiB".to_owned()));
    }

    #[test]
    fn a_container_without_a_namespace_of_its_own_finds_its_mount() {
        for own in ["0::/", "0::/kubepods/pod1/c1", "0::/../../c1"] {
            let files = [("proc/self/cgroup", own), ("sys/fs/cgroup/memory.max", "8589934592\n")];
            assert_eq!(found(&files), (512, "/sys/fs/cgroup/memory.max = 8 GiB".to_owned()), "{own}");
        }
    }

    #[test]
    fn cgroup_v1_is_read_where_v2_has_no_memory_controller() {
        let files = [
            ("proc/self/cgroup", "5:memory,hugetlb:/docker/x\n0::/docker/x\n"),
            ("sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes", "268435456\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ];
        assert_eq!(found(&files).0, 192);
    }

    #[test]
    fn without_a_limit_the_budget_is_modest() {
        let unlimited = (64, "no limit found".to_owned());
        assert_eq!(found(&[]), unlimited);
        assert_eq!(found(&[("proc/self/cgroup", "0::/\n"), ("sys/fs/cgroup/memory.max", "max\n")]), unlimited);
        assert_eq!(found(&[("proc/self/cgroup", "garbage")]), unlimited);
    }
}
