//! ZMTP 3.0 (ZeroMQ's RFC 23) as a server speaks it, without authentication (`NULL`): as much as subscribers and askers of events need.
//! Whoever connects can have it hold a few KiB: no length that he says is believed beyond that.

use std::io::{self, ErrorKind};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

/// What a peer says at a time: a topic, or a sequence number.
const MOST_BYTES: usize = 4096;
/// Frames of a message of a peer's.
const MOST_FRAMES: usize = 8;
/// A peer has so long to say what it is.
const HANDSHAKE: Duration = Duration::from_secs(10);

const GREETING: usize = 64;
const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// What a peer says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// A message, by its frames.
    Message(Vec<Vec<u8>>),
    /// It wants what begins so.
    Subscribe(Vec<u8>),
    /// It wants that no more.
    Cancel(Vec<u8>),
    /// It asks whether anybody is there.
    Ping(Vec<u8>),
}

/// Greets a peer whose socket has to be one of these.
///
/// # Errors
/// It is no such peer, or says nothing for long.
pub(crate) async fn greet(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    own: &str,
    peers: &[&str],
) -> io::Result<()> {
    let greeted = timeout(HANDSHAKE, async {
        let mut greeting = [0; GREETING];
        (greeting[0], greeting[9], greeting[10]) = (0xff, 0x7f, 3);
        greeting[12..16].copy_from_slice(b"NULL");
        stream.write_all(&greeting).await?;
        let mut theirs = [0; GREETING];
        stream.read_exact(&mut theirs).await?;
        let mechanism = theirs[12..32].split(|byte| *byte == 0).next();
        if theirs[0] != 0xff || theirs[9] & 1 != 1 || theirs[10] < 3 || mechanism != Some(b"NULL") {
            return Err(no("speaks no ZMTP 3 without authentication"));
        }
        let mut ready = BytesMut::new();
        ready.put_slice(b"\x05READY\x0bSocket-Type");
        ready.put_u32(own.len() as u32);
        ready.put_slice(own.as_bytes());
        stream.write_all(&framed(COMMAND, &ready)).await?;
        let (flags, said) = frame(stream).await?;
        let theirs = said.strip_prefix(b"\x05READY").filter(|_| flags & COMMAND > 0);
        let theirs = theirs.and_then(socket_type).ok_or_else(|| no("is not ready"))?;
        if peers.iter().any(|peer| peer.as_bytes() == theirs) {
            return Ok(());
        }
        Err(no("is a socket of another type"))
    });
    greeted.await.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()))
}

/// The next thing that a peer says; what is unknown is passed over.
///
/// # Errors
/// It is gone, or says too much.
pub(crate) async fn hear(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Said> {
    let mut frames = Vec::new();
    loop {
        let (flags, said) = frame(stream).await?;
        if flags & COMMAND > 0 {
            let told = |name: &[u8]| said.strip_prefix(name).map(<[u8]>::to_vec);
            if let Some(topic) = told(b"\x09SUBSCRIBE") {
                return Ok(Said::Subscribe(topic));
            }
            if let Some(topic) = told(b"\x06CANCEL") {
                return Ok(Said::Cancel(topic));
            }
            // Behind its name, how long it waits for an answer.
            if let Some(rest) = told(b"\x04PING") {
                return Ok(Said::Ping(rest.get(2..).unwrap_or_default().to_vec()));
            }
            continue;
        }
        frames.push(said);
        if frames.len() > MOST_FRAMES || frames.iter().map(Vec::len).sum::<usize>() > MOST_BYTES {
            return Err(no("says more than anybody has to"));
        }
        if flags & MORE == 0 {
            return Ok(Said::Message(frames));
        }
    }
}

/// A message, as it travels.
pub(crate) fn message(frames: &[Bytes]) -> Bytes {
    let mut message = BytesMut::with_capacity(frames.iter().map(|frame| frame.len() + 9).sum());
    for (number, frame) in frames.iter().enumerate() {
        message.put(framed(if number + 1 < frames.len() { MORE } else { 0 }, frame));
    }
    message.freeze()
}

/// The answer to a ping.
pub(crate) fn pong(context: &[u8]) -> Bytes {
    framed(COMMAND, &[b"\x04PONG", context].concat())
}

fn framed(flags: u8, body: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(body.len() + 9);
    match u8::try_from(body.len()) {
        Ok(length) => frame.put_slice(&[flags, length]),
        Err(_) => {
            frame.put_u8(flags | LONG);
            frame.put_u64(body.len() as u64);
        }
    }
    frame.put_slice(body);
    frame.freeze()
}

async fn frame(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<(u8, Vec<u8>)> {
    let flags = stream.read_u8().await?;
    if flags & !(MORE | LONG | COMMAND) > 0 {
        return Err(no("says what is no frame"));
    }
    let length = match flags & LONG {
        0 => u64::from(stream.read_u8().await?),
        _ => stream.read_u64().await?,
    };
    let length = usize::try_from(length).ok().filter(|length| *length <= MOST_BYTES);
    let mut body = vec![0; length.ok_or_else(|| no("says more than anybody has to"))?];
    stream.read_exact(&mut body).await?;
    Ok((flags, body))
}

/// The socket's type among the properties behind READY.
fn socket_type(mut properties: &[u8]) -> Option<&[u8]> {
    while let Some((length, rest)) = properties.split_first() {
        let (name, rest) = rest.split_at_checked(usize::from(*length))?;
        let (length, rest) = rest.split_first_chunk::<4>()?;
        let (value, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        if name.eq_ignore_ascii_case(b"Socket-Type") {
            return Some(value);
        }
        properties = rest;
    }
    None
}

fn no(problem: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("a peer {problem}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready(kind: &[u8]) -> Vec<u8> {
        let length = (kind.len() as u32).to_be_bytes();
        let body = [&b"\x05READY\x08Identity\0\0\0\0\x0bSocket-Type"[..], &length, kind].concat();
        framed(COMMAND, &body).to_vec()
    }

    fn greeting() -> Vec<u8> {
        let mut greeting = vec![0; GREETING];
        (greeting[0], greeting[9], greeting[10], greeting[11]) = (0xff, 0x7f, 3, 1);
        greeting[12..16].copy_from_slice(b"NULL");
        greeting
    }

    /// What comes of a peer who says this and closes.
    async fn greeted(said: &[u8]) -> io::Result<Vec<u8>> {
        let (mut own, mut peer) = tokio::io::duplex(1 << 16);
        peer.write_all(said).await.unwrap();
        peer.shutdown().await.unwrap();
        greet(&mut own, "PUB", &["SUB", "XSUB"]).await?;
        drop(own);
        let mut answer = Vec::new();
        peer.read_to_end(&mut answer).await.unwrap();
        Ok(answer)
    }

    #[tokio::test(flavor = "current_thread")]
    async fn subscribers_are_greeted_and_others_are_not() {
        let answer = greeted(&[greeting(), ready(b"SUB")].concat()).await.unwrap();
        assert_eq!(answer[..10], [0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0x7f]);
        assert!(answer.ends_with(b"\x05READY\x0bSocket-Type\0\0\0\x03PUB"));
        let huge = [&[COMMAND | LONG][..], &(1_u64 << 61).to_be_bytes()].concat();
        let mut plain = greeting();
        plain[12..17].copy_from_slice(b"PLAIN");
        for said in [
            [greeting(), ready(b"PUB")].concat(),
            [greeting(), huge].concat(),
            [greeting(), b"\x04\x06\x05READY".to_vec()].concat(),
            [greeting(), b"\x04\x0a\x05READY\xff\xff\xff\xff".to_vec()].concat(),
            [plain, ready(b"SUB")].concat(),
            b"GET / HTTP/1.1\r\n\r\n".repeat(5),
            greeting()[..20].to_vec(),
        ] {
            assert!(greeted(&said).await.is_err(), "{said:?}");
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn what_is_said_is_heard_and_too_much_is_not() {
        let said = [
            framed(0, b"\x01kv").to_vec(),
            framed(COMMAND, b"\x09SUBSCRIBEkv").to_vec(),
            framed(COMMAND, b"\x07UNKNOWN").to_vec(),
            framed(COMMAND, b"\x04PING\0\x0ahello").to_vec(),
            message(&[Bytes::new(), Bytes::from_static(&[7; 300])]).to_vec(),
        ];
        let mut stream = &said.concat()[..];
        let mut heard = Vec::new();
        while let Ok(said) = hear(&mut stream).await {
            heard.push(said);
        }
        let expected = [
            Said::Message(vec![b"\x01kv".to_vec()]),
            Said::Subscribe(b"kv".to_vec()),
            Said::Ping(b"hello".to_vec()),
            Said::Message(vec![Vec::new(), vec![7; 300]]),
        ];
        assert_eq!(heard, expected);
        let many = vec![Bytes::new(); MOST_FRAMES + 1];
        let large = [Bytes::from(vec![0; 3000]), Bytes::from(vec![0; 3000])];
        for mut said in
            [&message(&many)[..], &message(&large)[..], &[LONG, 0x80, 0, 0, 0, 0, 0, 0, 0], &[8, 0]]
        {
            assert!(hear(&mut said).await.is_err());
        }
    }
}
