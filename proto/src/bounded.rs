//! Files that people write, read up to a limit: no file is taken into memory because it is there.

use std::io::{self, Read};

use tidegate_model::Bytes;

/// All that `from` gives, as text.
///
/// # Errors
/// If it is longer than `most`, is not UTF-8, or cannot be read.
pub fn text_up_to(most: Bytes, from: impl Read) -> io::Result<String> {
    let mut text = String::new();
    let mut from = from.take(most.0.saturating_add(1));
    from.read_to_string(&mut text)?;
    if from.limit() == 0 {
        return Err(io::Error::other(format!("over {} bytes; at most that are accepted", most.0)));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_read_whole_or_refused() {
        let read = |length: u64| text_up_to(Bytes(4), io::repeat(b'a').take(length));
        assert_eq!(read(0).unwrap(), "");
        assert_eq!(read(4).unwrap(), "aaaa");
        assert_eq!(read(5).unwrap_err().to_string(), "over 4 bytes; at most that are accepted");
        let endless = text_up_to(Bytes(4), io::repeat(b'a')).unwrap_err();
        assert_eq!(endless.to_string(), "over 4 bytes; at most that are accepted");
        assert!(text_up_to(Bytes(4), &[0xff_u8][..]).is_err());
    }
}
