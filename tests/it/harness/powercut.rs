//! Power cuts of a real filesystem: ext4 in an image on a loop device, shut down without flushing its log.
//!
//! `EXT4_IOC_SHUTDOWN` with `NOLOGFLUSH` ends all I/O at once: what was not made durable is gone, as after the
//! plug was pulled. Mounting again replays the log. It needs root and loop devices; [`PowerCut::new`] says plainly
//! where they are missing.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

/// How many rounds a power cut story runs: `SPARKGATE_POWER_CUTS`, else `default`.
pub fn rounds(default: usize) -> usize {
    std::env::var("SPARKGATE_POWER_CUTS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

/// A filesystem whose power can be cut. Dropping it unmounts it and removes the image.
pub struct PowerCut {
    folder: tempfile::TempDir,
    mounted: bool,
}

impl PowerCut {
    /// A fresh filesystem of `megabytes`. `None`, with the reason on standard error: this machine can't do it, and
    /// the story has nothing to say here.
    pub fn new(megabytes: u64) -> Option<Self> {
        if let Err(reason) = possible() {
            assert!(
                std::env::var_os("SPARKGATE_POWER_CUTS").is_none(),
                "SPARKGATE_POWER_CUTS is set, and power can't be cut here: {reason}"
            );
            eprintln!(
                "power cuts need root and loop devices, and are not simulated here: {reason}"
            );
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let image = folder.path().join("image");
        let file = std::fs::File::create(&image).expect("an image");
        file.set_len(megabytes << 20).expect("room for the image");
        std::fs::create_dir(folder.path().join("mount")).expect("a folder");
        must(
            Command::new("mkfs.ext4")
                .args(["-q", "-F", "-m", "0"])
                .arg(&image),
        );
        let mut disk = Self {
            folder,
            mounted: false,
        };
        disk.mount();
        Some(disk)
    }

    /// Where it is mounted.
    pub fn path(&self) -> PathBuf {
        self.folder.path().join("mount")
    }

    /// Cuts the power: from now on every access fails. Processes that use it must be ended before
    /// [`Self::remount`].
    pub fn cut(&self) {
        let script = "import fcntl, os, struct, sys\n\
            fd = os.open(sys.argv[1], os.O_RDONLY)\n\
            fcntl.ioctl(fd, 0x8004587d, struct.pack('I', 2))\n";
        must(
            Command::new("python3")
                .args(["-c", script])
                .arg(self.path()),
        );
    }

    /// Power is back: unmounts what is left and mounts the image, which replays the filesystem's log.
    pub fn remount(&mut self) {
        self.unmount();
        self.mount();
    }

    fn mount(&mut self) {
        let image = self.folder.path().join("image");
        // No commits of its own in the time of a story: what is durable was made durable by the program. Loop devices
        // may be few, and other stories have theirs.
        super::until("the filesystem can be mounted", 120, || {
            let output = run(Command::new("mount")
                .args(["-o", "loop,commit=600"])
                .arg(&image)
                .arg(self.path()));
            if !output.status.success() {
                eprintln!("mount: {}", String::from_utf8_lossy(&output.stderr));
            }
            output.status.success().then_some(())
        });
        self.mounted = true;
    }

    fn unmount(&mut self) {
        if self.mounted {
            super::until("the filesystem can be unmounted", 60, || {
                let output = run(Command::new("umount").arg(self.path()));
                output.status.success().then_some(())
            });
            self.mounted = false;
        }
    }
}

impl Drop for PowerCut {
    fn drop(&mut self) {
        if self.mounted {
            // Lazily: a test that fails may have left something open.
            let _ = run(Command::new("umount").arg("-l").arg(self.path()));
        }
    }
}

/// Whether this machine can do it, tried once with a small image.
fn possible() -> Result<(), &'static str> {
    static POSSIBLE: OnceLock<Result<(), &'static str>> = OnceLock::new();
    *POSSIBLE.get_or_init(|| {
        if !is_root() {
            return Err("not root");
        }
        if !Path::new("/dev/loop-control").exists() {
            return Err("there is no /dev/loop-control");
        }
        let folder = tempfile::tempdir().map_err(|_| "no temporary folder")?;
        let (image, mount) = (folder.path().join("image"), folder.path().join("mount"));
        let made = std::fs::File::create(&image)
            .and_then(|file| file.set_len(8 << 20))
            .and_then(|()| std::fs::create_dir(&mount));
        made.map_err(|_| "no room for an image")?;
        let worked = |command: &mut Command| {
            let output = command.stdin(Stdio::null()).output();
            output.is_ok_and(|output| output.status.success())
        };
        if !worked(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image)) {
            return Err("mkfs.ext4 is missing or fails");
        }
        if !worked(
            Command::new("mount")
                .args(["-o", "loop"])
                .arg(&image)
                .arg(&mount),
        ) {
            return Err("a loop device can't be mounted");
        }
        let _ = worked(Command::new("umount").arg(&mount));
        Ok(())
    })
}

fn is_root() -> bool {
    let output = run(Command::new("id").arg("-u"));
    output.stdout.trim_ascii() == b"0"
}

fn run(command: &mut Command) -> Output {
    command
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

fn must(command: &mut Command) {
    let output = run(command);
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
}
