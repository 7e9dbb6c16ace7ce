//! The data of server-sent events, of bytes that arrive cut anywhere.

/// What has arrived, up to the last line that is not whole.
#[derive(Default)]
pub(crate) struct EventLines(Vec<u8>);

impl EventLines {
    /// Takes what arrives, and gives the data of each line that is whole by then.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        self.0.extend_from_slice(bytes);
        let whole = self.0.iter().rposition(|&byte| byte == b'\n').map_or(0, |last| last + 1);
        let lines: Vec<u8> = self.0.drain(..whole).collect();
        let data = |line: &[u8]| Some(line.trim_ascii().strip_prefix(b"data:")?.trim_ascii().to_vec());
        lines.split(|&byte| byte == b'\n').filter_map(data).collect()
    }
}
