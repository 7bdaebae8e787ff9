// Connecting to the daemon, and starting a per-user one when there is none.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "base/fd.hpp"
#include "session/endpoint.hpp"

namespace softnpu {

// Connects one client within 60 s. An unused daemon may end at any moment; the client then connects to the
// next one or starts it: "Coming and going" in docs/interface.md.
class Launch {
public:
    Launch();

    // A connected socket. UNINITIALIZED when there is no daemon and none can be started,
    // INSUFFICIENT_PERMISSIONS for that of an untrusted user.
    Fd connect();
    // Whether a daemon that closed the connection without an answer may have ended. It has not if it accepts
    // a second connection; and after several that were started and ended so, the next one would as well.
    bool may_try_again() const;

    const std::string& path() const { return endpoint_.path; }
    // Whether the daemon is this user's own.
    bool is_own() const { return own_; }

private:
    Attempt attempt();
    Fd start();

    const Endpoint endpoint_;
    const uint64_t end_;
    pid_t peer_ = 0;
    bool again_ = false;
    int starts_ = 0;
    bool own_ = false;
};

}  // namespace softnpu
