//! HTTPS with a certificate made here: served, renewed by SIGHUP while a stream goes on, and refused when it cannot be used.

use std::{
    io::{Read, Write},
    net::TcpStream,
    sync::Arc,
};

use faser_tests::{Config, PATIENCE, Server};
use rcgen::{CertifiedKey, KeyPair, generate_simple_self_signed};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned, pki_types::CertificateDer};

const CONFIG: &str = "server: {tls: {cert: cert.pem, key: key.pem}}\nmodel: {synthetic: {preset: tiny}}\n";

fn certificate() -> CertifiedKey<KeyPair> {
    generate_simple_self_signed(vec!["localhost".to_owned()]).expect("a certificate can be made")
}

fn write(config: &Config, certificate: &CertifiedKey<KeyPair>) {
    for (name, text) in
        [("cert.pem", certificate.cert.pem()), ("key.pem", certificate.signing_key.serialize_pem())]
    {
        std::fs::write(config.folder().join(name), text).expect("a temporary file can be written");
    }
}

/// A connection to a server with this certificate and no other.
fn connect(server: &Server, trusted: &CertificateDer<'static>) -> StreamOwned<ClientConnection, TcpStream> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone()).expect("a certificate to trust");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("TLS 1.2 and 1.3")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = "localhost".try_into().expect("a name");
    let connection = ClientConnection::new(Arc::new(config), name).expect("a client");
    let socket = TcpStream::connect(&server.client().address).expect("a connection");
    socket.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    StreamOwned::new(connection, socket)
}

/// The answer to a GET, or why there is none.
fn get(server: &Server, path: &str, trusted: &CertificateDer<'static>) -> std::io::Result<String> {
    let mut stream = connect(server, trusted);
    write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
    let mut answer = String::new();
    match stream.read_to_string(&mut answer) {
        Err(err) if answer.is_empty() => Err(err),
        _ => Ok(answer),
    }
}

#[test]
fn a_certificate_is_served_and_renewed_while_a_stream_goes_on() {
    let (first, second) = (certificate(), certificate());
    let config = Config::new(CONFIG);
    write(&config, &first);
    let command = config.serve();
    let server = Server::run(config, command);
    assert!(server.output().contains("https://"), "{}", server.output());
    let (old, new) = (first.cert.der(), second.cert.der());
    let answer = get(&server, "/v1/models", old).expect("an answer over TLS");
    assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.contains("\"synthetic\""), "{answer}");
    assert!(get(&server, "/health", new).is_err(), "another certificate is not trusted");
    // What speaks no TLS gets no HTTP.
    let mut plain = TcpStream::connect(&server.client().address).expect("a connection");
    plain.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    plain.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").expect("bytes can be sent");
    let mut answer = Vec::new();
    // It may be reset instead of closed.
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.windows(4).any(|bytes| bytes == b"HTTP"), "{answer:?}");

    let mut stream = connect(&server, old);
    let body = r#"{"prompt": "go on", "max_tokens": 400, "temperature": 0.9, "seed": 4, "stream": true}"#;
    let length = body.len();
    write!(stream, "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}")
        .expect("a request can be sent");
    let mut begun = [0; 16];
    stream.read_exact(&mut begun).expect("the stream begins");
    assert!(begun.starts_with(b"HTTP/1.1 200"));
    // A key that belongs to another certificate changes nothing.
    server.write("cert.pem", &second.cert.pem());
    server.signal("HUP");
    server.wait_for("the refusal", || server.output().contains("reload refused, nothing is changed"));
    assert!(server.output().contains("key.pem: does not go with"), "{}", server.output());
    assert!(get(&server, "/health", old).is_ok());
    server.write("key.pem", &second.signing_key.serialize_pem());
    server.signal("HUP");
    server.wait_for("the new certificate", || get(&server, "/health", new).is_ok());
    assert!(get(&server, "/health", old).is_err());
    assert!(server.output().contains("applied: server.tls.cert"), "{}", server.output());
    let mut rest = String::new();
    stream.read_to_string(&mut rest).expect("the stream ends as TLS demands");
    assert!(rest.contains("data: [DONE]"), "{rest}");
    assert!(!server.output().contains("PRIVATE KEY"), "a key is in the log");
}

#[test]
fn files_that_are_no_certificate_are_refused_at_the_start() {
    let (one, other) = (certificate(), certificate());
    let good = (one.cert.pem(), one.signing_key.serialize_pem());
    for (cert, key, part) in [
        ("nothing".to_owned(), good.1.clone(), "cert.pem: is no certificate in PEM"),
        (String::new(), good.1.clone(), "cert.pem: is no certificate in PEM: there is none in it"),
        (good.0.clone(), "nothing".to_owned(), "key.pem: is no private key in PEM"),
        (good.0.clone(), good.0.clone(), "key.pem: is no private key in PEM"),
        (good.0.clone(), other.signing_key.serialize_pem(), "key.pem: does not go with"),
    ] {
        let config = Config::new(CONFIG);
        std::fs::write(config.folder().join("cert.pem"), &cert).expect("a temporary file can be written");
        std::fs::write(config.folder().join("key.pem"), &key).expect("a temporary file can be written");
        let output = config.serve().output().expect("the binary can be started");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{part}: {said}");
        assert!(said.contains(part) && !said.contains("PRIVATE KEY"), "{part}: {said}");
    }
}
