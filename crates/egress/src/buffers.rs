//! Bounds on data that waits in a connection. It is memory of the kernel and the proxy, outside
//! the cage's limits: the more connections there are, the less each one gets.

use ironcage_sys::inet::bound_unsent;
use ironcage_sys::rustix::net::sockopt::{
    set_socket_recv_buffer_size, set_socket_send_buffer_size,
};
use std::os::fd::AsFd;
use tokio::net::TcpStream;

/// So many connections get what the kernel thinks best, for the throughput.
const FEW: u64 = 16;
/// What all others share, and what each of them gets at least and at most.
const TOGETHER: u64 = 64 << 20;
const LEAST: u64 = 16 << 10;
const MOST: u64 = 256 << 10;

/// Bytes that may wait in each direction of a connection, where there are so many; `None` where
/// they are few.
pub(crate) fn share(connections: u64) -> Option<u32> {
    if connections <= FEW {
        return None;
    }
    let share = (TOGETHER / connections).clamp(LEAST, MOST);
    u32::try_from(share).ok()
}

/// Bounds what waits in a connection. Where a socket does not take a bound it keeps the kernel's
/// own, which is one too.
pub(crate) fn bound(stream: &TcpStream, connections: u64) {
    let Some(share) = share(connections) else {
        return;
    };
    let _ = set_socket_recv_buffer_size(stream, share as usize);
    let _ = set_socket_send_buffer_size(stream, share as usize);
    let _ = bound_unsent(stream.as_fd(), share);
}

#[cfg(test)]
mod tests {
    use super::*;
    use ironcage_sys::rustix::net::sockopt::{socket_recv_buffer_size, socket_send_buffer_size};
    use tokio::net::TcpListener;

    #[test]
    fn the_more_there_are_the_less_each_one_gets_and_the_sum_has_an_end() {
        assert_eq!(share(FEW), None);
        assert_eq!(share(FEW + 1), Some(256 << 10));
        assert_eq!(share(1 << 20), Some(16 << 10));
        let most = crate::serve::MOST;
        let sum: u64 = (1..=most).filter_map(share).map(u64::from).sum();
        assert!(sum < 512 << 20, "{sum}");
    }

    #[test]
    fn a_socket_among_many_takes_the_bound() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build()
            .unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let stream = TcpStream::connect(listener.local_addr().unwrap())
                .await
                .unwrap();
            let sizes = || {
                let sizes = (
                    socket_recv_buffer_size(&stream),
                    socket_send_buffer_size(&stream),
                );
                (sizes.0.unwrap(), sizes.1.unwrap())
            };
            let before = sizes();
            bound(&stream, FEW);
            assert_eq!(sizes(), before);
            bound(&stream, 1 << 20);
            // The kernel doubles what it is told, for its own accounts.
            assert_eq!(sizes(), (32 << 10, 32 << 10));
        });
    }
}
