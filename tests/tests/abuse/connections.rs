//! Connections that say little, slowly, or nothing; that do not listen; and very many of them.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpStream},
    time::Duration,
};

use faser_tests::Server;
use serde_json::json;

use crate::wire::{Answer, connect, post, read, request};
use crate::{server, undisturbed};

/// Sends a byte now and then until the connection ends, and returns what was answered.
fn drip(mut stream: TcpStream, bytes: &[u8]) -> Answer {
    stream.set_nodelay(true).expect("an option");
    for byte in bytes.iter().cycle() {
        if stream.write_all(&[*byte]).is_err() {
            break;
        }
        stream.set_read_timeout(Some(Duration::from_millis(50))).expect("a time-out");
        let mut probe = [0];
        // Only looks: the answer is read below.
        if stream.peek(&mut probe).is_ok() {
            break;
        }
    }
    stream.set_read_timeout(Some(faser_tests::PATIENCE)).expect("a time-out");
    read(&mut stream)
}

#[test]
fn what_is_sent_byte_by_byte_ends_by_the_servers_clock() {
    let server = server();
    let address = &server.client().address;
    undisturbed(&server, || {
        std::thread::scope(|scope| {
            for i in 0..24 {
                scope.spawn(move || {
                    let mut stream = connect(address);
                    match i % 3 {
                        // A head that never ends.
                        0 => drip(stream, b"GET /v1/models HTTP/1.1\r\nhost: x\r\nx-a: b\r\n")
                            .is_refusal()
                            .expect("a slow head"),
                        // A body that never ends.
                        1 => {
                            let head = request("POST", "/v1/completions", "content-length: 4000000\r\n", "");
                            stream.write_all(&head).expect("a head can be sent");
                            drip(stream, b" ").is_error(408).expect("a slow body");
                        }
                        // Nothing, ever.
                        _ => read(&mut stream).is_refusal().expect("a silent connection"),
                    }
                });
            }
        });
    });
}

#[test]
fn garbage_behind_a_good_request_ends_the_connection_and_nothing_else() {
    let server = server();
    let mut stream = connect(&server.client().address);
    let mut bytes = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n".repeat(40);
    bytes.extend((0..=255).cycle().take(4000));
    // The server may have closed before it has all.
    let _ = stream.write_all(&bytes);
    let mut answers = Vec::new();
    let _ = stream.read_to_end(&mut answers);
    let answers = String::from_utf8_lossy(&answers);
    assert!(answers.starts_with("HTTP/1.1 200"), "{answers:.200}");
    assert!(answers.matches("HTTP/1.1 ").count() <= 41, "{answers:.200}");
    assert_eq!(server.client().get("/health").status, 200);
}

#[test]
fn clients_that_leave_at_once_leave_nothing_behind() {
    let server = server();
    let address = &server.client().address;
    let body = json!({"prompt": "gone", "max_tokens": 4000, "temperature": 0, "stream": true}).to_string();
    undisturbed(&server, || {
        for i in 0..300 {
            let mut stream = connect(address);
            match i % 4 {
                0 => {}
                1 => stream.write_all(b"POST /v1/comp").expect("bytes can be sent"),
                2 => stream.write_all(&post("/v1/completions", &body)).expect("bytes can be sent"),
                _ => {
                    stream.write_all(&post("/v1/completions", &body)).expect("bytes can be sent");
                    stream.shutdown(Shutdown::Both).expect("it can be closed");
                }
            }
        }
    });
}

#[test]
fn a_client_that_does_not_read_its_stream_is_cut_off() {
    let server = server();
    let body =
        json!({"prompt": "unread", "max_tokens": 8000, "temperature": 0, "logprobs": 20, "stream": true})
            .to_string();
    let before = server.descriptors();
    let unread: Vec<TcpStream> = undisturbed(&server, || {
        let streams = (0..2).map(|_| {
            let mut stream = connect(&server.client().address);
            stream.write_all(&post("/v1/completions", &body)).expect("a request can be sent");
            stream
        });
        let streams: Vec<TcpStream> = streams.collect();
        server.wait_for("all are cut off", || {
            server.output().matches("takes nothing of its stream").count() >= 2
        });
        streams
    });
    // The kernel gives up on what it could not deliver, though the clients are still there.
    server.wait_for("the descriptors are free", || server.descriptors() <= before);
    for mut stream in unread {
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        let rest = String::from_utf8_lossy(&rest);
        assert!(rest.starts_with("HTTP/1.1 200") && !rest.contains("[DONE]"), "{} bytes", rest.len());
    }
}

/// As many connections as wanted, or as the descriptors of this process allow; those of the server are the same.
fn as_many_as(wanted: usize) -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").expect("Linux");
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).expect("a limit");
    let soft = line.split_whitespace().next().expect("the soft limit").parse::<usize>().unwrap_or(usize::MAX);
    wanted.min(soft.saturating_sub(512))
}

#[test]
fn ten_thousand_connections_are_held_and_let_go() {
    let server = server();
    let count = as_many_as(10_000);
    println!("{count} connections");
    undisturbed(&server, || {
        let crowd: Vec<TcpStream> = (0..count).map(|_| connect(&server.client().address)).collect();
        assert_eq!(server.client().get("/health").status, 200);
        for mut stream in crowd {
            read(&mut stream).is_refusal().expect("an idle connection");
        }
    });
}

#[test]
fn a_server_with_few_places_serves_again_when_they_are_free() {
    let server = Server::start(
        "server: {max_connections: 8, header_timeout_s: 1}\nmodel: {synthetic: {preset: tiny}}\nlog: {level: warn}\n",
    );
    let crowd: Vec<TcpStream> = (0..60).map(|_| connect(&server.client().address)).collect();
    // It waits behind all of them.
    assert_eq!(server.client().get("/health").status, 200);
    assert!(server.descriptors() < 55, "{} descriptors", server.descriptors());
    drop(crowd);
}
