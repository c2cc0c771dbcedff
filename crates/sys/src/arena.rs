//! The memory of a short life: a start makes some thousand small values and ends.
//!
//! Pieces are taken one after the other from one region, without a search, a lock or a system
//! call; what is given back is used again only if it is the last piece. When the region is used
//! up, and for large pieces, the C library's allocator serves: a supervisor that lives for days
//! uses that for all but its first moments.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Room for several starts; what is not used is never touched, and so is no memory.
const SIZE: usize = 1 << 20;
/// A larger piece is the C library's to give, and to take back.
const LARGEST: usize = 128 * 1024;

#[repr(align(4096))]
struct Region(UnsafeCell<[MaybeUninit<u8>; SIZE]>);

// SAFETY: nothing reads or writes through the cell here; each piece is given to one owner only,
// because `NEXT` passes each place once, or again after its owner has given it back.
unsafe impl Sync for Region {}

static REGION: Region = Region(UnsafeCell::new([MaybeUninit::uninit(); SIZE]));
/// How much of the region is given.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// The allocator of the program; see the module.
#[derive(Debug, Clone, Copy)]
pub struct Arena;

fn base() -> *mut u8 {
    REGION.0.get().cast()
}

/// Where in the region a piece begins, if it is one of the region's.
fn place(piece: *mut u8) -> Option<usize> {
    piece
        .addr()
        .checked_sub(base().addr())
        .filter(|place| *place < SIZE)
}

/// Moves `NEXT` from one place to another, unless somebody was there before.
fn advance(from: usize, to: usize) -> bool {
    NEXT.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
        .is_ok()
}

fn take(layout: Layout) -> Option<*mut u8> {
    if layout.size() > LARGEST {
        return None;
    }
    loop {
        let next = NEXT.load(Ordering::Acquire);
        let start = base().addr().checked_add(next)?;
        let aligned = start.checked_next_multiple_of(layout.align())?;
        let first = next.checked_add(aligned - start)?;
        let end = first.checked_add(layout.size())?;
        if end > SIZE {
            return None;
        }
        if advance(next, end) {
            return Some(base().wrapping_add(first));
        }
    }
}

// SAFETY: a piece of the region has the size and the alignment that were asked for and belongs
// to its owner until it is given back; everything else is the system allocator's.
unsafe impl GlobalAlloc for Arena {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match take(layout) {
            Some(piece) => piece,
            // SAFETY: the caller's promise is the same.
            None => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn dealloc(&self, piece: *mut u8, layout: Layout) {
        match place(piece) {
            Some(first) => {
                advance(first + layout.size(), first);
            }
            // SAFETY: not from the region, so it came from there.
            None => unsafe { System.dealloc(piece, layout) },
        }
    }

    unsafe fn realloc(&self, piece: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let Some(first) = place(piece) else {
            // SAFETY: not from the region, so it came from there.
            return unsafe { System.realloc(piece, layout, size) };
        };
        // The last piece grows or shrinks where it is.
        let end = first.saturating_add(size);
        if end <= SIZE && size <= LARGEST && advance(first + layout.size(), end) {
            return piece;
        }
        if size <= layout.size() {
            return piece;
        }
        let Ok(wanted) = Layout::from_size_align(size, layout.align()) else {
            return std::ptr::null_mut();
        };
        // SAFETY: the caller's promise about the size is the same.
        let larger = unsafe { self.alloc(wanted) };
        if !larger.is_null() {
            // SAFETY: both are at least as long as the old piece, and they do not overlap.
            unsafe { std::ptr::copy_nonoverlapping(piece, larger, layout.size()) };
        }
        larger
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(size: usize, align: usize) -> Layout {
        Layout::from_size_align(size, align).unwrap()
    }

    /// One test, because all share the region.
    #[test]
    fn pieces_are_aligned_apart_kept_when_they_grow_and_the_system_serves_when_none_is_left() {
        let make = |size, align| {
            // SAFETY: sizes are not zero.
            let piece = unsafe { Arena.alloc(layout(size, align)) };
            assert!(!piece.is_null() && piece.addr() % align == 0);
            // SAFETY: the piece is that long.
            unsafe { std::ptr::write_bytes(piece, size as u8, size) };
            piece
        };
        let holds = |piece: *mut u8, size: usize, value: u8| {
            // SAFETY: the piece is at least that long and was written.
            let bytes = unsafe { std::slice::from_raw_parts(piece, size) };
            bytes.iter().all(|byte| *byte == value)
        };
        let (one, two) = (make(3, 1), make(64, 64));
        assert!(place(one).is_some() && place(two).is_some());
        // The last grows where it is, the one before moves and keeps what it holds.
        // SAFETY: from this allocator, with that layout.
        let grown = unsafe { Arena.realloc(two, layout(64, 64), 100) };
        assert_eq!(grown, two);
        // SAFETY: as before.
        let moved = unsafe { Arena.realloc(one, layout(3, 1), 40) };
        assert!(moved != one && holds(moved, 3, 3) && holds(grown, 64, 64));
        // What is given back last is used again; what lies before it is not.
        let last = make(10, 1);
        // SAFETY: as before.
        unsafe { Arena.dealloc(last, layout(10, 1)) };
        assert_eq!(make(10, 1), last);
        // A large piece, and what does not fit any more, come from the system.
        let large = make(LARGEST + 1, 16);
        assert!(place(large).is_none());
        // SAFETY: as before.
        unsafe { Arena.dealloc(large, layout(LARGEST + 1, 16)) };
        let pieces: Vec<*mut u8> = (0..SIZE / 1000 + 10).map(|_| make(1000, 8)).collect();
        assert!(pieces.iter().any(|piece| place(*piece).is_some()));
        assert!(pieces.iter().any(|piece| place(*piece).is_none()));
        assert!(
            pieces
                .iter()
                .all(|piece| holds(*piece, 1000, 1000_u16 as u8))
        );
        // SAFETY: as before.
        let moved = unsafe { Arena.realloc(pieces[0], layout(1000, 8), 5000) };
        assert!(place(moved).is_none() && holds(moved, 1000, 1000_u16 as u8));
    }
}
