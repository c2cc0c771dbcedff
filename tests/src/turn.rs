//! Who may run beside whom: all end-to-end tests are one program, and some of them look at the whole host.
//!
//! Every [`Stage`](crate::Stage) holds a shared turn for as long as it exists. A test that compares the host before and
//! after takes an [`exclusive`] turn: it begins when no stage of another test is left, and no other stage begins
//! before it ends.

use std::cell::{Cell, RefCell};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

#[derive(Default)]
struct Turns {
    shared: usize,
    exclusive: bool,
    /// Tests that wait for an exclusive turn; new shared turns wait behind them.
    waiting: usize,
}

static TURNS: Mutex<Turns> = Mutex::new(Turns {
    shared: 0,
    exclusive: false,
    waiting: 0,
});
static CHANGED: Condvar = Condvar::new();

thread_local! {
    /// The turn of this thread's test: a second stage of one test must not wait for the first.
    static MINE: RefCell<Weak<SharedTurn>> = const { RefCell::new(Weak::new()) };
    static ALONE: Cell<bool> = const { Cell::new(false) };
}

fn turns() -> MutexGuard<'static, Turns> {
    TURNS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A turn beside other tests.
#[derive(Debug)]
pub(crate) struct SharedTurn {
    counted: bool,
}

impl SharedTurn {
    /// The turn of this thread's test, waited for if it has none yet.
    pub(crate) fn take() -> Arc<Self> {
        if let Some(held) = MINE.with_borrow(Weak::upgrade) {
            return held;
        }
        let counted = !ALONE.get();
        if counted {
            let mut turns = turns();
            while turns.exclusive || turns.waiting > 0 {
                turns = CHANGED.wait(turns).unwrap_or_else(PoisonError::into_inner);
            }
            turns.shared += 1;
        }
        let turn = Arc::new(SharedTurn { counted });
        MINE.set(Arc::downgrade(&turn));
        turn
    }
}

impl Drop for SharedTurn {
    fn drop(&mut self) {
        if self.counted {
            turns().shared -= 1;
            CHANGED.notify_all();
        }
    }
}

/// A turn without any other test; it ends when this is dropped.
#[derive(Debug)]
#[must_use]
pub struct ExclusiveTurn {
    /// Shared turns of the same test, given up for the time being.
    given_up: usize,
}

/// Waits until no other test has a stage, and keeps others from beginning one.
///
/// Call it on the thread that has the test's own stage, or will have it.
pub fn exclusive() -> ExclusiveTurn {
    let mine = MINE.with_borrow(Weak::upgrade);
    let given_up = usize::from(mine.is_some_and(|turn| turn.counted));
    let mut turns = turns();
    turns.shared -= given_up;
    turns.waiting += 1;
    CHANGED.notify_all();
    while turns.exclusive || turns.shared > 0 {
        turns = CHANGED.wait(turns).unwrap_or_else(PoisonError::into_inner);
    }
    turns.waiting -= 1;
    turns.exclusive = true;
    ALONE.set(true);
    ExclusiveTurn { given_up }
}

impl Drop for ExclusiveTurn {
    fn drop(&mut self) {
        ALONE.set(false);
        let mut turns = turns();
        turns.exclusive = false;
        turns.shared += self.given_up;
        drop(turns);
        CHANGED.notify_all();
    }
}
