//! The admin socket: where it is, and how it comes to be there with the right owner and mode at once.

use std::fmt::Display;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use faser_config::{AdminConfig, AdminSocket};

use super::peer::Operators;

/// Users of its group may connect.
const MODE: u32 = 0o660;
/// The name of the socket in the folder that the service manager has made.
const NAME: &str = "admin.sock";

/// A socket that listens. Its file goes with it, if it made one.
pub struct Socket {
    /// The listener.
    pub listener: UnixListener,
    /// Where it is.
    pub path: PathBuf,
    /// The file's number: another daemon may have put its own there since.
    made: Option<u64>,
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.made.is_some() && inode(&self.path) == self.made {
            // It may be gone already.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Where the socket of this config is; none if there is to be none.
pub fn place(config: &AdminConfig) -> Option<PathBuf> {
    match &config.socket {
        AdminSocket::At(path) => Some(path.clone()),
        AdminSocket::Off => None,
        AdminSocket::Standard => {
            let folders = std::env::var_os("RUNTIME_DIRECTORY").filter(|folders| !folders.is_empty())?;
            // Several are parted by colons; ours is the first.
            let first = std::env::split_paths(&folders).next()?;
            Some(first.join(NAME))
        }
    }
}

/// Whether the config can be meant so on this machine. Its folder may still be to be made, by the service manager.
///
/// # Errors
/// There is no such group, or what is at the socket's place is none.
pub fn check(config: &AdminConfig) -> Result<()> {
    Operators::new(config.group.as_deref()).map_err(|why| anyhow!("`admin.group`: {why}"))?;
    match &config.socket {
        AdminSocket::At(path) => refuse_what_is_no_socket(path),
        _ => Ok(()),
    }
}

/// One that the service manager has opened: its unit says who may connect.
pub fn handed_over(listener: UnixListener) -> Socket {
    let address = listener.local_addr().ok();
    let path = address.and_then(|address| address.as_pathname().map(Path::to_owned));
    Socket { listener, path: path.unwrap_or_default(), made: None }
}

/// Listens at `path`. A socket that nobody listens at any more is replaced.
///
/// # Errors
/// Somebody listens there, something else is there, or the folder or the group cannot be had.
pub fn listen(path: &Path, operators: &Operators) -> Result<Socket> {
    let failed = |what: &str| {
        let what = what.to_owned();
        move |err: io::Error| refused(path, format!("{what}: {err}"))
    };
    refuse_what_is_no_socket(path)?;
    if UnixStream::connect(path).is_ok() {
        return Err(refused(path, "another daemon listens there: choose another `admin.socket`"));
    }
    // Made beside its place: at it, it has its owner and mode from the first moment on.
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}", std::process::id()));
    let beside = path.with_file_name(name);
    // Of a process with our number that was killed.
    let _ = fs::remove_file(&beside);
    let listener =
        UnixListener::bind(&beside).map_err(failed("it cannot be made; does the folder exist?"))?;
    let moved = || -> Result<()> {
        if let Some(gid) = operators.gid() {
            let advice =
                "it cannot be given to `admin.group`; is faser's user a member (SupplementaryGroups=)?";
            chown(&beside, None, Some(gid)).map_err(failed(advice))?;
        }
        fs::set_permissions(&beside, fs::Permissions::from_mode(MODE))
            .map_err(failed("its mode cannot be set"))?;
        fs::rename(&beside, path).map_err(failed("it cannot be put there"))
    };
    if let Err(err) = moved() {
        // Nothing is to be left behind.
        let _ = fs::remove_file(&beside);
        return Err(err);
    }
    Ok(Socket { listener, path: path.to_owned(), made: inode(path) })
}

fn refused(path: &Path, problem: impl Display) -> anyhow::Error {
    anyhow!("cannot listen on the admin socket {}: {problem}", path.display())
}

fn refuse_what_is_no_socket(path: &Path) -> Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            Err(refused(path, "something that is no socket is there: choose another `admin.socket`"))
        }
        _ => Ok(()),
    }
}

fn inode(path: &Path) -> Option<u64> {
    Some(fs::symlink_metadata(path).ok()?.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let folder = std::env::temp_dir().join(format!("faser-socket-{name}-{}", std::process::id()));
            fs::create_dir_all(&folder).unwrap();
            Folder(folder)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            // Left behind in the temporary folder it does no harm.
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn it_has_its_mode_replaces_a_dead_one_and_goes_with_the_daemon() {
        let folder = Folder::new("life");
        let path = folder.0.join("admin.sock");
        // Dropped: the file stays, and nobody listens.
        drop(UnixListener::bind(&path).unwrap());
        let socket = listen(&path, &Operators::default()).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, MODE);
        assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1);
        let refusal = listen(&path, &Operators::default()).err().unwrap().to_string();
        assert!(refusal.contains("another daemon"), "{refusal}");
        drop(socket);
        assert!(!path.exists());
    }

    #[test]
    fn a_file_of_another_daemon_and_other_files_are_left_alone() {
        let folder = Folder::new("others");
        let path = folder.0.join("admin.sock");
        let socket = listen(&path, &Operators::default()).unwrap();
        fs::rename(&path, folder.0.join("away")).unwrap();
        let other = UnixListener::bind(&path).unwrap();
        drop(socket);
        assert!(path.exists());
        drop(other);
        fs::remove_file(&path).unwrap();
        fs::write(&path, "a file").unwrap();
        let refusal = listen(&path, &Operators::default()).err().unwrap().to_string();
        assert!(refusal.contains("no socket"), "{refusal}");
        let config = AdminConfig { socket: AdminSocket::At(path), group: None };
        assert_eq!(check(&config).unwrap_err().to_string(), refusal);
        let config = AdminConfig { socket: AdminSocket::Off, group: Some("faser-no-such-group".to_owned()) };
        assert!(check(&config).unwrap_err().to_string().starts_with("`admin.group`: there is no group"));
        let nowhere = listen(&folder.0.join("no/where"), &Operators::default()).err().unwrap().to_string();
        assert!(nowhere.contains("folder"), "{nowhere}");
    }
}
