// Connecting to the daemon, and starting a per-user one when there is none.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "base/fd.hpp"
#include "session/endpoint.hpp"

namespace softnpu {

// The way of one client to a daemon, within 60 s from now. A daemon may end at any moment, by itself when
// nobody uses it; who comes then finds or starts the next one: "Coming and going" in docs/interface.md.
class Launch {
public:
    Launch();

    // A connected socket, over which nothing was sent. UNINITIALIZED when there is no daemon and none may or
    // can be started, INSUFFICIENT_PERMISSIONS when it is that of a user who is not to be trusted.
    Fd connect();
    // Whether a daemon that has closed the connection without an answer can have ended itself. Not one that
    // is reached a second time: a daemon that ends takes no more connections.
    bool may_try_again() const;

    const std::string& path() const { return endpoint_.path; }

private:
    Attempt attempt();
    Fd start();

    const Endpoint endpoint_;
    const uint64_t end_;
    pid_t peer_ = 0;
    bool again_ = false;
};

}  // namespace softnpu
