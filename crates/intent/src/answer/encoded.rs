//! Decompresses model responses as their parts arrive.

use brotli_decompressor::DecompressorWriter;
use flate2::write::{GzDecoder, ZlibDecoder};
use std::io::{self, Write};

/// How the bytes of an answer are encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    Identity,
    Gzip,
    /// `deflate`, with zlib's frame.
    Deflate,
    /// `br`.
    Brotli,
}

impl Encoding {
    /// The one that a `Content-Encoding` names. `None` for one that is not read, or several.
    pub fn named(name: &str) -> Option<Self> {
        match name.trim().to_ascii_lowercase().as_str() {
            "" | "identity" => Some(Encoding::Identity),
            "gzip" | "x-gzip" => Some(Encoding::Gzip),
            "deflate" => Some(Encoding::Deflate),
            "br" => Some(Encoding::Brotli),
            _ => None,
        }
    }
}

/// More than this in all is not taken out of an answer: a few bytes can stand for any number.
const LARGEST: usize = 64 * 1024 * 1024;

/// Piece of what was taken out that is handed on at once.
const PIECE: usize = 16 * 1024;

/// Where what was taken out is collected until it is handed on.
#[derive(Debug, Default)]
pub(super) struct Out {
    bytes: Vec<u8>,
    total: usize,
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.total = self.total.saturating_add(bytes.len());
        if self.total > LARGEST {
            return Err(io::Error::other("the decompressed body is too long"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub(super) enum Decoder {
    Identity,
    Gzip(GzDecoder<Out>),
    Deflate(ZlibDecoder<Out>),
    Brotli {
        decoder: Box<DecompressorWriter<Out>>,
        begun: bool,
    },
}

impl std::fmt::Debug for Decoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Decoder::Identity => "identity",
            Decoder::Gzip(_) => "gzip",
            Decoder::Deflate(_) => "deflate",
            Decoder::Brotli { .. } => "br",
        })
    }
}

impl Decoder {
    pub(super) fn new(encoding: Encoding) -> Self {
        match encoding {
            Encoding::Identity => Decoder::Identity,
            Encoding::Gzip => Decoder::Gzip(GzDecoder::new(Out::default())),
            Encoding::Deflate => Decoder::Deflate(ZlibDecoder::new(Out::default())),
            Encoding::Brotli => Decoder::Brotli {
                decoder: Box::new(DecompressorWriter::new(Out::default(), PIECE)),
                begun: false,
            },
        }
    }

    /// Takes bytes as they came, and hands on what they say. In small pieces: of a few bytes that
    /// stand for many, no more is kept than one step gives.
    pub(super) fn feed(&mut self, bytes: &[u8], mut each: impl FnMut(&[u8])) -> io::Result<()> {
        if matches!(self, Decoder::Identity) {
            each(bytes);
            return Ok(());
        }
        for piece in bytes.chunks(64) {
            let out = match self {
                Decoder::Identity => return Ok(()),
                Decoder::Gzip(decoder) => {
                    decoder.write_all(piece)?;
                    decoder.flush()?;
                    decoder.get_mut()
                }
                Decoder::Deflate(decoder) => {
                    decoder.write_all(piece)?;
                    decoder.flush()?;
                    decoder.get_mut()
                }
                Decoder::Brotli { decoder, begun } => {
                    let first = piece.first().filter(|_| !*begun);
                    // Windows of up to a gigabyte, which the encoding of HTTP does not have.
                    if first.is_some_and(|byte| byte & 0x7f == 0x11) {
                        return Err(io::Error::other("the compression window is too large"));
                    }
                    *begun = true;
                    decoder.write_all(piece)?;
                    decoder.get_mut()
                }
            };
            each(&out.bytes);
            out.bytes.clear();
        }
        Ok(())
    }
}
