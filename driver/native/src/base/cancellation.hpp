// Cancellation of threads (pthread_cancel) in the midst of a call.
//
// A call completes what it has begun to send or receive: destructors have to close descriptors, and an answer
// brings memory that the session has to know of. So a call is a cancellation point only where it waits for
// the device, or for an answer that another thread can handle.
#pragma once

#include <pthread.h>

namespace softnpu {

// The thread is not cancelled in its scope. One at a time in a thread.
class NotCancelled {
public:
    NotCancelled() {
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_);
        allowed_ = before_ == PTHREAD_CANCEL_ENABLE;
    }
    // with asynchronous cancellation a thread that was cancelled meanwhile is unwound from here
    ~NotCancelled() noexcept(false) { pthread_setcancelstate(before_, nullptr); }
    NotCancelled(const NotCancelled&) = delete;
    NotCancelled& operator=(const NotCancelled&) = delete;

private:
    friend class CancellationPoint;

    inline static thread_local bool allowed_ = false;
    int before_ = PTHREAD_CANCEL_ENABLE;
};

// In its scope the thread may be cancelled where it blocks, unless the program has disabled that.
class CancellationPoint {
public:
    explicit CancellationPoint(bool wanted = true) : active_(wanted && NotCancelled::allowed_) {
        if (!active_) return;
        pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &type_);
        pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, nullptr);
    }
    ~CancellationPoint() {
        if (!active_) return;
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
        pthread_setcanceltype(type_, nullptr);
    }
    CancellationPoint(const CancellationPoint&) = delete;
    CancellationPoint& operator=(const CancellationPoint&) = delete;

private:
    const bool active_;
    int type_ = PTHREAD_CANCEL_DEFERRED;
};

}  // namespace softnpu
