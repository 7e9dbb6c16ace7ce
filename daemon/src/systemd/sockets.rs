//! Socket activation: ports that the service manager has opened and hands over by LISTEN_FDS.

use std::net::TcpListener;
use std::os::unix::net::UnixListener;

use anyhow::{Result, anyhow};
use listenfd::ListenFd;
use socket2::SockRef;

/// What was handed over to this process; mostly nothing.
pub struct Sockets {
    sockets: ListenFd,
    names: Vec<String>,
}

impl Sockets {
    /// Takes what LISTEN_FDS, LISTEN_PID and LISTEN_FDNAMES speak of. It takes two of them out of the environment, so it is called
    /// once, before there are other threads.
    pub fn take() -> Sockets {
        let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
        let names = names.split(':').map(str::to_owned).collect();
        Sockets { sockets: ListenFd::from_env(), names }
    }

    /// The socket for operators: the one called `admin`. `None` if none is.
    ///
    /// # Errors
    /// It is no unix socket that listens.
    pub fn admin(&mut self) -> Result<Option<UnixListener>> {
        let Some(index) = self.names.iter().take(self.sockets.len()).position(|name| name == ADMIN) else {
            return Ok(None);
        };
        let advice = "the ListenStream= of the socket `admin` must be a path, with Accept=no";
        let refuse = |what: String| handed_over(format!("{what}; {advice}"));
        let taken = self.sockets.take_unix_listener(index).map_err(|err| refuse(err.to_string()))?;
        match taken.as_ref().map(|socket| SockRef::from(socket).is_listener()) {
            None | Some(Ok(true)) => Ok(taken),
            Some(Ok(false)) => Err(refuse(format!("socket {index} does not listen"))),
            Some(Err(err)) => {
                Err(refuse(format!("socket {index} cannot be asked whether it listens: {err}")))
            }
        }
    }

    /// The port for HTTP: the socket called `http`, or the only one but that called `admin`. `None` if there is none.
    ///
    /// # Errors
    /// None of several is called `http`, or it is no TCP socket that listens.
    pub fn http(&mut self) -> Result<Option<TcpListener>> {
        let Some(index) = choose(self.sockets.len(), &self.names).map_err(handed_over)? else {
            return Ok(None);
        };
        let others = |(place, name): (usize, &String)| place != index && name != ADMIN;
        if self.names.iter().take(self.sockets.len()).enumerate().any(others) {
            tracing::warn!(names = %self.names.join(":"), "of the sockets handed over only `http` and `admin` are used");
        }
        let advice = "a ListenStream= of the .socket unit must be an address and a port, with Accept=no";
        let refuse = |what: String| handed_over(format!("{what}; {advice}"));
        let taken = self.sockets.take_tcp_listener(index).map_err(|err| refuse(err.to_string()))?;
        let Some(socket) = taken else { return Ok(None) };
        let listens = SockRef::from(&socket).is_listener();
        match listens {
            Ok(true) => Ok(Some(socket)),
            Ok(false) => Err(refuse(format!("socket {index} is a TCP socket, but does not listen"))),
            Err(err) => Err(refuse(format!("socket {index} cannot be asked whether it listens: {err}"))),
        }
    }
}

/// What the socket for operators is called.
const ADMIN: &str = "admin";

/// Which of `count` sockets is for HTTP.
/// What the service manager handed over is no port to serve on.
fn handed_over(what: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("cannot listen on what was handed over by LISTEN_FDS: {what}")
}

fn choose(count: usize, names: &[String]) -> Result<Option<usize>, String> {
    let named = names.iter().take(count).position(|name| name == "http");
    let is_admin = |place: &usize| names.get(*place).is_some_and(|name| name == ADMIN);
    let others: Vec<usize> = (0..count).filter(|place| !is_admin(place)).collect();
    match (named, others.as_slice()) {
        (None, []) => Ok(None),
        (None, [only]) => Ok(Some(*only)),
        (None, _) => Err(format!(
            "there are {count} sockets, `{}`, and none is called `http`: give the one for the HTTP API FileDescriptorName=http",
            names.join("`, `")
        )),
        (Some(index), _) => Ok(Some(index)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_one_called_http_or_the_only_one_is_taken() {
        let names = |names: &str| names.split(':').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(choose(0, &names("")), Ok(None));
        assert_eq!(choose(0, &names("http")), Ok(None), "a name without a socket");
        assert_eq!(choose(1, &names("faser.socket")), Ok(Some(0)));
        assert_eq!(choose(1, &names("")), Ok(Some(0)));
        assert_eq!(choose(3, &names("admin:http:x")), Ok(Some(1)));
        assert_eq!(choose(1, &names("admin")), Ok(None), "operators' alone");
        assert_eq!(choose(2, &names("admin:x")), Ok(Some(1)), "the only other one");
        let refusal = choose(3, &names("admin:x:y")).unwrap_err();
        assert!(refusal.contains("`admin`, `x`") && refusal.contains("FileDescriptorName=http"), "{refusal}");
    }
}
