//! The listening socket: how it is opened, what its connections inherit, and how many of them the process can have.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, Type};

/// Connections that wait to be taken.
const BACKLOG: i32 = 1024;
/// Bytes of an answer that the kernel keeps for a client that does not read; it takes the double for its books.
const SEND_BUFFER_BYTES: usize = 128 << 10;
/// Descriptors for everything that is no connection: models, logs, threads' queues.
const OTHER_DESCRIPTORS: usize = 256;

/// Opens `address`.
///
/// # Errors
/// The operating system refuses.
pub(crate) fn open(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Sets what connections inherit: a small send buffer, and an end for those whose client takes nothing for twice `patience`. An answer
/// that is whole is in the kernel's hands, so only the kernel can give up on it; a stream has been given up by then.
///
/// # Errors
/// The operating system refuses.
pub(crate) fn bound(listener: &TcpListener, patience: Duration) -> io::Result<()> {
    let socket = SockRef::from(listener);
    socket.set_send_buffer_size(SEND_BUFFER_BYTES)?;
    socket.set_tcp_user_timeout(Some(2 * patience))
}

/// How many connections there may be: as many as asked for, if the process may have so many descriptors.
pub(crate) fn connections(asked: usize) -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let Some(room) = descriptors(&limits).map(|most| most.saturating_sub(OTHER_DESCRIPTORS).max(16)) else {
        return asked;
    };
    if room < asked {
        tracing::warn!(
            asked,
            room,
            "`server.max_connections` is more than the descriptors of this process (ulimit -n, LimitNOFILE=): there will be fewer"
        );
    }
    asked.min(room)
}

/// The soft limit of open files, as /proc says it.
fn descriptors(limits: &str) -> Option<usize> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_is_read() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units     \n\
                      Max processes             94862                94862                processes \n\
                      Max open files            1024                 524288               files     \n";
        assert_eq!(descriptors(limits), Some(1024));
        assert_eq!(
            descriptors("Max open files            unlimited            unlimited            files"),
            None
        );
        assert_eq!(descriptors(""), None);
        assert!((1..=1000).contains(&connections(1000)));
    }

    #[test]
    fn connections_inherit_the_bounds() {
        let listener = open("127.0.0.1:0".parse().unwrap()).unwrap();
        bound(&listener, Duration::from_secs(7)).unwrap();
        let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (connection, _) = listener.accept().unwrap();
        let socket = SockRef::from(&connection);
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(Duration::from_secs(14)));
        assert!(socket.send_buffer_size().unwrap() <= 2 * SEND_BUFFER_BYTES);
        drop(client);
    }
}
