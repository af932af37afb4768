#include "comm/backends/gloo/transport.h"

#include <errno.h>
#include <fmt/format.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <exception>
#include <mutex>
#include <utility>

#include "base/posix.h"
#include "perdure/clock.h"

namespace perdure {

namespace tcp = gloo::transport::tcp;

namespace {

constexpr long kLockWaitNs = 500'000;

}  // namespace

WaitOutcome WaitableBuffer::Await(std::condition_variable& changed, int& completions,
                                  Deadline deadline) {
  std::unique_lock<std::mutex> lock(m_);
  const bool in_time = changed.wait_until(
      lock, deadline.at(), [&] { return completions > 0 || ex_ != nullptr || interrupted_; });
  // What has arrived counts, whatever happened to the connection since.
  if (completions > 0) {
    --completions;
    --under_way_;
    return WaitOutcome::kDone;
  }
  if (!in_time) return WaitOutcome::kLate;
  return interrupted_ ? WaitOutcome::kInterrupted : WaitOutcome::kBroken;
}

WaitOutcome WaitableBuffer::AwaitRecv(Deadline deadline) {
  return Await(recvCv_, recvCompletions_, deadline);
}

WaitOutcome WaitableBuffer::AwaitSend(Deadline deadline) {
  return Await(sendCv_, sendCompletions_, deadline);
}

void WaitableBuffer::Interrupt() {
  std::lock_guard<std::mutex> lock(m_);
  interrupted_ = true;
  recvCv_.notify_all();
  sendCv_.notify_all();
}

bool WaitableBuffer::HasReceived() {
  std::lock_guard<std::mutex> lock(m_);
  return recvCompletions_ > 0;
}

GuardedPair::GuardedPair(tcp::Context* context, tcp::Device* device, int peer,
                         std::chrono::milliseconds timeout, PairObserver& observer)
    : Pair(context, device, peer, timeout), observer_(observer) {}

void GuardedPair::handleEvents(int events) {
  // Gloo's own tries the lock and returns at once, so that the loop spins while the lane writes.
  // Not a plain lock: its holder may be waiting for the loop, to close.
  const Duration until =
      (RealClock().WallNow() + std::chrono::nanoseconds(kLockWaitNs)).time_since_epoch();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(until);
  const timespec at{static_cast<time_t>(seconds.count()),
                    static_cast<long>((until - seconds).count())};
  if (pthread_mutex_timedlock(m_.native_handle(), &at) == 0) m_.unlock();
  try {
    Pair::handleEvents(events);
  } catch (const std::exception& error) {
    signalExceptionExternal(error.what());
  }
}

void GuardedPair::changeState(state next) noexcept {
  const bool closes = next == CLOSED && state_ != CLOSED;
  Pair::changeState(next);
  if (closes) observer_.OnPairClosed(rank_);
}

Status GuardedPair::Dial(const std::vector<char>& address) {
  std::unique_lock<std::mutex> lock(m_);
  if (ex_ != nullptr) return Status(Code::kUnavailable, "the pair is broken");
  peer_ = tcp::Address(address);
  is_client_ = true;
  const sockaddr_storage& to = peer_.getSockaddr();
  const socklen_t length = to.ss_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);

  device_->unregisterDescriptor(fd_, this);
  ::close(std::exchange(fd_, -1));
  fd_ = ::socket(to.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd_ < 0) return ErrnoStatus(errno, "socket for a connection to a peer");
  if (::connect(fd_, reinterpret_cast<const sockaddr*>(&to), length) != 0 && errno != EINPROGRESS) {
    return ErrnoStatus(errno, "connect to " + peer_.str());
  }
  changeState(CONNECTING);
  device_->registerDescriptor(fd_, EPOLLIN | EPOLLOUT, this);
  return Ok();
}

WaitOutcome GuardedPair::AwaitConnected(Deadline deadline) {
  std::unique_lock<std::mutex> lock(m_);
  const bool in_time =
      cv_.wait_until(lock, deadline.at(), [&] { return ex_ != nullptr || state_ >= CONNECTED; });
  if (state_ == CONNECTED) return WaitOutcome::kDone;
  return in_time ? WaitOutcome::kBroken : WaitOutcome::kLate;
}

int GuardedPair::BytesUnderWay() {
  std::lock_guard<std::mutex> lock(m_);
  int bytes = 0;
  if (state_ != CONNECTED || ::ioctl(fd_, SIOCOUTQ, &bytes) != 0) return 0;
  return bytes;
}

GuardedContext::GuardedContext(std::shared_ptr<tcp::Device> device, int rank, int size,
                               PairObserver& observer)
    : Context(std::move(device), rank, size), observer_(observer) {}

std::unique_ptr<gloo::transport::Pair>& GuardedContext::createPair(int peer) {
  auto& place = pairs_[static_cast<std::size_t>(peer)];
  place = std::make_unique<GuardedPair>(this, device_.get(), peer, getTimeout(), observer_);
  return place;
}

Result<std::shared_ptr<tcp::Device>> OpenGlooDevice(const std::string& interface,
                                                    const std::string& host) {
  const auto refused = [&](const std::string& why) {
    return Status(Code::kInvalidArgument,
                  fmt::format("cannot listen for collectives on {} (PERDURE_COMM_IFACE, "
                              "PERDURE_COMM_HOST): {}",
                              interface.empty() ? host : "interface " + interface, why));
  };
  // Asked here, because Gloo loses memory when it finds no such interface.
  if (!interface.empty() && if_nametoindex(interface.c_str()) == 0) {
    return refused("this machine has no interface of that name");
  }
  // The loop's thread must not take the program's signals.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::shared_ptr<tcp::Device> device;
  std::string error;
  try {
    tcp::attr attributes;
    if (interface.empty()) {
      attributes.hostname = host;
    } else {
      attributes.iface = interface;
    }
    device = std::make_shared<tcp::Device>(tcp::CreateDeviceAttr(attributes));
  } catch (const std::exception& problem) {
    error = problem.what();
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (device == nullptr) return refused(error);
  return device;
}

}  // namespace perdure
