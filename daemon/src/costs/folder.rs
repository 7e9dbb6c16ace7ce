//! Where costs are kept when the config names no folder: the one place that reads the environment for it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// `$CACHE_DIRECTORY` as systemd sets it, else `$XDG_CACHE_HOME/faser`, else `~/.cache/faser`; nothing if none is set.
pub(super) fn standard() -> Option<PathBuf> {
    standard_of(|name| std::env::var_os(name))
}

fn standard_of(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    // A relative path would depend on where faser is started; the XDG specification wants it ignored too.
    let folder = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    systemd(variable("CACHE_DIRECTORY"))
        .or_else(|| folder("XDG_CACHE_HOME").map(|cache| cache.join("faser")))
        .or_else(|| folder("HOME").map(|home| home.join(".cache/faser")))
}

/// The first of a unit's cache directories, which are parted by colons.
fn systemd(directories: Option<OsString>) -> Option<PathBuf> {
    let first = std::env::split_paths(&directories?).next()?;
    Path::is_absolute(&first).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Option<PathBuf> {
        standard_of(|name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into()))
    }

    #[test]
    fn the_first_variable_that_names_a_folder_decides() {
        let home = ("HOME", "/home/me");
        let xdg = ("XDG_CACHE_HOME", "/var/me");
        for (variables, folder) in [
            (&[home, xdg, ("CACHE_DIRECTORY", "/var/cache/faser:/var/cache/other")][..], "/var/cache/faser"),
            (&[home, xdg][..], "/var/me/faser"),
            (&[home, xdg, ("CACHE_DIRECTORY", "")][..], "/var/me/faser"),
            (&[home, ("XDG_CACHE_HOME", "relative")][..], "/home/me/.cache/faser"),
            (&[home, ("XDG_CACHE_HOME", "")][..], "/home/me/.cache/faser"),
        ] {
            assert_eq!(of(variables).as_deref(), Some(Path::new(folder)), "{variables:?}");
        }
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[("HOME", "")]), None);
    }
}
