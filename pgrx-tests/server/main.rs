//! Tests against real servers, one file per subject. One binary for all of them: it is linked once, runs initdb
//! once, and its tests run side by side.

mod smoke;
