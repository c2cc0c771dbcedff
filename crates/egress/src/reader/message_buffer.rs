//! Splits what the reader sends into messages: a length, then that many bytes of JSON.

use super::LONGEST;
use ironcage_model::{MOST_INTENDED, Overheard};
use std::io;

/// What came and is not whole.
#[derive(Debug, Default)]
pub(super) struct MessageBuffer {
    buffer: Vec<u8>,
}

impl MessageBuffer {
    /// Takes bytes as they come. Returns what is whole.
    pub(super) fn take(&mut self, bytes: &[u8]) -> io::Result<Vec<Overheard>> {
        let garbled = || io::Error::from(io::ErrorKind::InvalidData);
        self.buffer.extend_from_slice(bytes);
        let mut told = Vec::new();
        while let Some((head, rest)) = self.buffer.split_first_chunk::<4>() {
            let length = u32::from_le_bytes(*head) as usize;
            if length > LONGEST {
                return Err(garbled());
            }
            let Some(text) = rest.get(..length) else {
                break;
            };
            let overheard = serde_json::from_slice(text).map_err(|_| garbled())?;
            if !is_bounded(&overheard) {
                return Err(garbled());
            }
            told.push(overheard);
            self.buffer.drain(..4 + length);
        }
        Ok(told)
    }
}

fn is_bounded(overheard: &Overheard) -> bool {
    match overheard {
        Overheard::Call(intent) => {
            let most = [
                intent.reads.len(),
                intent.writes.len(),
                intent.removes.len(),
                intent.contacts.len(),
            ];
            most.iter().all(|count| *count <= MOST_INTENDED)
        }
        Overheard::Words(words) => {
            words.paths.len() <= MOST_INTENDED && words.hosts.len() <= MOST_INTENDED
        }
        Overheard::Returned(_) | Overheard::NotRead { .. } => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(overheard: &Overheard) -> Vec<u8> {
        let text = serde_json::to_vec(overheard).unwrap();
        let mut bytes = (text.len() as u32).to_le_bytes().to_vec();
        bytes.extend(text);
        bytes
    }

    #[test]
    fn it_comes_in_any_pieces_and_garbage_is_an_error() {
        let one = Overheard::Returned(vec!["t1".into()]);
        let two = Overheard::NotRead {
            times: 2,
            why: "x".into(),
        };
        let bytes = [written(&one), written(&two)].concat();
        let mut heard = MessageBuffer::default();
        let told: Vec<Overheard> = (bytes.chunks(1))
            .flat_map(|byte| heard.take(byte).unwrap())
            .collect();
        assert_eq!(told, [one, two]);
        assert!(MessageBuffer::default().take(&[0xff; 4]).is_err());
        assert!(MessageBuffer::default().take(&[1, 0, 0, 0, b'{']).is_err());
        let many = vec!["/x".to_owned(); MOST_INTENDED + 1];
        let intent = ironcage_model::Intent {
            id: None,
            tool: "x".into(),
            reads: many,
            writes: Vec::new(),
            removes: Vec::new(),
            contacts: Vec::new(),
            open: false,
            shell: false,
            denied: None,
        };
        let bytes = written(&Overheard::Call(intent));
        assert!(MessageBuffer::default().take(&bytes).is_err());
    }
}
