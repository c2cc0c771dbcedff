//! A command in the guest: program, arguments, environment, directory, terminal.

/// Longest order, as the kernel bounds arguments and environment.
pub const MAX_ORDER: usize = 4 << 20;

/// The size of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TerminalSize {
    pub rows: u16,
    pub columns: u16,
}

/// A command for the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestOrder {
    /// The program's file.
    pub program: Vec<u8>,
    pub argv: Vec<Vec<u8>>,
    /// Each `NAME=value`.
    pub env: Vec<Vec<u8>>,
    pub cwd: Vec<u8>,
    /// A terminal instead of three streams.
    pub terminal: Option<TerminalSize>,
}

/// Bytes that are not an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an order for the guest")]
pub struct OrderError;

fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend((bytes.len() as u32).to_le_bytes());
    out.extend(bytes);
}

fn put_list(out: &mut Vec<u8>, list: &[Vec<u8>]) {
    out.extend((list.len() as u32).to_le_bytes());
    for item in list {
        put(out, item);
    }
}

fn number(bytes: &mut &[u8]) -> Result<usize, OrderError> {
    let (first, rest) = bytes.split_first_chunk::<4>().ok_or(OrderError)?;
    *bytes = rest;
    Ok(u32::from_le_bytes(*first) as usize)
}

fn take(bytes: &mut &[u8]) -> Result<Vec<u8>, OrderError> {
    let length = number(bytes)?;
    let (item, rest) = bytes.split_at_checked(length).ok_or(OrderError)?;
    *bytes = rest;
    match item.contains(&0) {
        true => Err(OrderError),
        false => Ok(item.to_vec()),
    }
}

fn take_list(bytes: &mut &[u8]) -> Result<Vec<Vec<u8>>, OrderError> {
    let count = number(bytes)?;
    // Each item has a length of four bytes.
    if count > bytes.len() / 4 {
        return Err(OrderError);
    }
    (0..count).map(|_| take(bytes)).collect()
}

impl GuestOrder {
    /// The order as it travels.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let size = self.terminal.map(|size| [size.rows, size.columns]);
        out.push(u8::from(size.is_some()));
        for side in size.unwrap_or_default() {
            out.extend(side.to_le_bytes());
        }
        put(&mut out, &self.program);
        put(&mut out, &self.cwd);
        put_list(&mut out, &self.argv);
        put_list(&mut out, &self.env);
        out
    }

    /// Reads an order.
    ///
    /// # Errors
    /// Bytes that are not an order, or more of them than one has.
    pub fn decode(mut bytes: &[u8]) -> Result<GuestOrder, OrderError> {
        let bytes = &mut bytes;
        let (head, rest) = bytes.split_first_chunk::<5>().ok_or(OrderError)?;
        *bytes = rest;
        let [flag, a, b, c, d] = *head;
        let terminal = (flag != 0).then_some(TerminalSize {
            rows: u16::from_le_bytes([a, b]),
            columns: u16::from_le_bytes([c, d]),
        });
        let order = GuestOrder {
            terminal,
            program: take(bytes)?,
            cwd: take(bytes)?,
            argv: take_list(bytes)?,
            env: take_list(bytes)?,
        };
        match bytes.is_empty() {
            true => Ok(order),
            false => Err(OrderError),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order() -> GuestOrder {
        GuestOrder {
            program: b"/bin/sh".to_vec(),
            argv: vec![b"sh".to_vec(), Vec::new(), b"\xff\xfe".to_vec()],
            env: vec![b"A=1".to_vec()],
            cwd: b"/".to_vec(),
            terminal: Some(TerminalSize {
                rows: 24,
                columns: 80,
            }),
        }
    }

    #[test]
    fn an_order_arrives_as_it_was_sent() {
        assert_eq!(GuestOrder::decode(&order().encode()), Ok(order()));
        let piped = GuestOrder {
            terminal: None,
            ..order()
        };
        assert_eq!(GuestOrder::decode(&piped.encode()), Ok(piped));
    }

    #[test]
    fn an_order_that_was_cut_or_promises_more_than_it_has_is_refused() {
        let bytes = order().encode();
        for length in 0..bytes.len() {
            assert_eq!(GuestOrder::decode(&bytes[..length]), Err(OrderError));
        }
        let mut more = bytes.clone();
        more.push(0);
        assert_eq!(GuestOrder::decode(&more), Err(OrderError));
    }
}
