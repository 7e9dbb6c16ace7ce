//! `admin`: where operators' socket is, and who may change things by it.

use std::path::{Path, PathBuf};

use crate::fields::{FieldError, Fields};

/// The operators' side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminConfig {
    /// Where its socket is.
    pub socket: AdminSocket,
    /// Members of this group may change things, beside root and faser's own user.
    pub group: Option<String>,
}

/// Where the admin socket is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminSocket {
    /// In the folder that the service manager made for us (`RUNTIME_DIRECTORY`); without one nowhere.
    Standard,
    /// There.
    At(PathBuf),
    /// Nowhere.
    Off,
}

/// The longest path that a unix socket may have, with room for a name beside it while it is made, in bytes.
const LONGEST_PATH: usize = 90;

pub(super) fn admin(mut fields: Fields<'_>, folder: &Path) -> Result<AdminConfig, FieldError> {
    let socket = match fields.text("socket")? {
        None => AdminSocket::Standard,
        Some("none") => AdminSocket::Off,
        Some(text) => {
            let path = folder.join(text);
            if text.is_empty() || path.as_os_str().len() > LONGEST_PATH {
                let wanted = format!("`none`, or a path that is {LONGEST_PATH} bytes long at most");
                return Err(fields.wrong_value("socket", &wanted, &text.into()));
            }
            AdminSocket::At(path)
        }
    };
    let group = fields.text("group")?.map(str::to_owned);
    if group.as_ref().is_some_and(String::is_empty) {
        return Err(fields.wrong_value("group", "the name of a group", &"".into()));
    }
    fields.finish()?;
    Ok(AdminConfig { socket, group })
}
