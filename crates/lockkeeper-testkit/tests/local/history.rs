//! People and machines gone: killed, stopped, rebooted, out of space.
