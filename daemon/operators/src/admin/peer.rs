//! Who is at the other end of the socket, as the kernel says (SO_PEERCRED), and what that user may do.

use std::fmt;

use actix_web::rt::net::UnixStream;
use uzers::{get_effective_uid, get_group_by_name, get_user_by_uid};

/// Who may change things, beside root and the daemon's own user.
#[derive(Clone, Debug, Default)]
pub struct Operators {
    /// The group, by its name and number.
    group: Option<(String, u32)>,
}

/// Somebody who has connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The user; `None` if the kernel does not say.
    pub uid: Option<u32>,
    /// The process.
    pub pid: Option<i32>,
    /// Whether it may change things.
    pub may_change: bool,
}

impl Operators {
    /// Members of this group.
    ///
    /// # Errors
    /// There is no such group.
    pub fn new(group: Option<&str>) -> Result<Operators, String> {
        let Some(name) = group else { return Ok(Operators::default()) };
        let missing =
            || format!("there is no group `{name}`: make it with `groupadd {name}`, or change `admin.group`");
        let gid = get_group_by_name(name).ok_or_else(missing)?.gid();
        Ok(Operators { group: Some((name.to_owned(), gid)) })
    }

    /// The number of the group.
    pub fn gid(&self) -> Option<u32> {
        self.group.as_ref().map(|(_, gid)| *gid)
    }

    /// Who has connected.
    pub fn peer(&self, stream: &UnixStream) -> Peer {
        match stream.peer_cred() {
            Ok(cred) => Peer {
                uid: Some(cred.uid()),
                pid: cred.pid(),
                may_change: self.may_change(cred.uid(), cred.gid(), get_effective_uid()),
            },
            Err(err) => {
                tracing::warn!(%err, "the kernel does not say who has connected to the admin socket");
                Peer { uid: None, pid: None, may_change: false }
            }
        }
    }

    fn may_change(&self, uid: u32, gid: u32, own: u32) -> bool {
        if uid == 0 || uid == own {
            return true;
        }
        let Some((_, group)) = &self.group else { return false };
        let member = || {
            let groups = get_user_by_uid(uid).and_then(|user| user.groups());
            groups.is_some_and(|groups| groups.iter().any(|found| found.gid() == *group))
        };
        gid == *group || member()
    }

    /// What somebody who may only look has to do to change things.
    pub fn advice(&self) -> String {
        match &self.group {
            Some((name, _)) => {
                format!("become a member of the group `{name}` (usermod -aG {name} USER), or root")
            }
            None => "become root, or have a group named by `admin.group` in the config".to_owned(),
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.uid {
            Some(uid) => write!(f, "user {uid}"),
            None => f.write_str("an unknown user"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_the_own_user_and_members_of_the_group_may_change_things() {
        let nobody = Operators::default();
        assert!(nobody.may_change(0, 0, 1000) && nobody.may_change(1000, 1000, 1000));
        assert!(!nobody.may_change(4_000_001, 4_000_001, 1000));
        let group = Operators { group: Some(("operators".to_owned(), 4_000_002)) };
        assert!(group.may_change(4_000_001, 4_000_002, 1000), "by its first group");
        assert!(!group.may_change(4_000_001, 4_000_001, 1000), "nor a member by the group's list");
        // The kernel's number for users that this namespace does not know.
        assert!(!group.may_change(65_534, 65_534, 1000));
        assert!(group.advice().contains("operators") && nobody.advice().contains("admin.group"));
    }

    #[test]
    fn a_group_that_is_not_there_is_refused() {
        assert!(
            Operators::new(Some("faser-no-such-group")).unwrap_err().contains("groupadd faser-no-such-group")
        );
        assert_eq!(Operators::new(Some("root")).unwrap().gid(), Some(0));
        assert_eq!(Operators::new(None).unwrap().gid(), None);
    }
}
