#include "launch/runtime.h"

#include <mpi.h>
#include <pthread.h>
#include <semaphore.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <exception>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/check.h"
#include "parallel/collectives.h"
#include "parallel/make_communicator.h"
#include "parallel/mpi_transport.h"

namespace twinstream {
namespace {

// What signal handlers read and write. They get no argument, so this one thing is global; without
// locks and without constructors.
struct SignalState {
  std::atomic<bool> stop{false};  // any signal that asks for an orderly end
  sem_t told_to_end{};            // SIGTERM: somebody will not wait for long
  char self[512] = "twinstream";  // who dies, for the last words after a fatal signal
};
constinit SignalState signal_state;

constexpr int kStopSignals[] = {SIGTERM, SIGINT, SIGUSR1};

void OnStopSignal(int signal) {
  signal_state.stop = true;
  if (signal == SIGTERM) sem_post(&signal_state.told_to_end);
}

void WriteToStderr(const char* text, size_t length) {
  while (length > 0) {
    const ssize_t written = write(STDERR_FILENO, text, length);
    if (written <= 0) return;
    text += written;
    length -= static_cast<size_t>(written);
  }
}

// Async-signal-safe. Says who dies of what, and lets the signal kill as it would have.
void OnFatalSignal(int signal) {
  const char* const why =
      signal == SIGBUS
          ? " (a full /dev/shm, a file that was cut off while it is read, a failing disk or memory)"
          : "";
  const char* const parts[] = {signal_state.self, ": killed by a signal: ", sigdescr_np(signal),
                               why, "\n"};
  for (const char* part : parts) WriteToStderr(part, std::strlen(part));
  raise(signal);  // SA_RESETHAND has put the default action back
}

void InstallFailureHandlers() {
  struct sigaction ignore = {};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &ignore, nullptr);
  struct sigaction fatal = {};
  fatal.sa_handler = OnFatalSignal;
  fatal.sa_flags = SA_RESETHAND | SA_NODEFER;
  for (int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) {
    struct sigaction current = {};
    sigaction(signal, nullptr, &current);
    if (current.sa_handler == SIG_DFL) sigaction(signal, &fatal, nullptr);  // a sanitizer's stays
  }
}

// Blocks or unblocks the signals that ask for an end in this thread and those that it starts later.
// Threads that compute must not: in narrow products on AVX2 oneDNN's stack is on the heap, where
// the frame of a signal handler overwrites what lies before the product's buffer.
void MaskStopSignals(int how) {  // SIG_BLOCK or SIG_UNBLOCK
  sigset_t signals;
  sigemptyset(&signals);
  for (int signal : kStopSignals) sigaddset(&signals, signal);
  pthread_sigmask(how, &signals, nullptr);
}

[[noreturn]] void OnTerminate() {
  if (const std::exception_ptr thrown = std::current_exception()) {
    try {
      std::rethrow_exception(thrown);
    } catch (const std::exception& exception) {
      Die(absl::StrCat("an exception that nobody caught: ", exception.what()));
    } catch (...) {
      Die("an exception of unknown type that nobody caught");
    }
  }
  Die("std::terminate was called");
}

std::string NameOf(int rank, const std::vector<std::string>& hosts,
                   const std::function<std::string(int rank)>& place_of) {
  const std::string& host = hosts[static_cast<size_t>(rank)];  // empty while they meet
  return absl::StrCat("rank ", rank, place_of ? absl::StrCat(" (", place_of(rank), ")") : "",
                      host.empty() ? "" : absl::StrCat(" on host ", host));
}

}  // namespace

Runtime::Runtime(int& argc, char**& argv) {
  // Before MPI_Init, which would otherwise print a stack of its own for fatal signals.
  InstallFailureHandlers();
  int provided = 0;
  CheckMpi(MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
  CheckMpi(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  transport_ = MakeMpiTransport();
  char host[256] = "";
  gethostname(host, sizeof(host) - 1);
  hosts_.resize(static_cast<size_t>(size()));
  hosts_[static_cast<size_t>(rank())] = host;
  ApplyWaitPolicy();
  SetFailureHandler([this](absl::string_view paragraph) { Fail(paragraph); });
  std::set_terminate(OnTerminate);
  Check(provided >= MPI_THREAD_SERIALIZED,
        "this MPI library lets only one thread talk to other ranks (%d)", provided);
  MeetThisHost();
  std::vector<int> ranks(static_cast<size_t>(size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  world_ = MakeCommunicator(*transport_, GridGroup::kWorld, ranks);
  hosts_ = GatherTexts(*world_, hostname());
  ApplyWaitPolicy();
}

Runtime::~Runtime() {
  if (speaker_.joinable()) {
    speaker_.request_stop();
    sem_post(&signal_state.told_to_end);
    speaker_.join();
  }
  SetFailureHandler(nullptr);
  std::set_terminate(nullptr);
  CheckMpi(MPI_Finalize(), "MPI_Finalize");
}

void Runtime::MeetThisHost() {
  MPI_Comm host;
  CheckMpi(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank(), MPI_INFO_NULL, &host),
           "MPI_Comm_split_type");
  CheckMpi(MPI_Comm_rank(host, &local_rank_), "MPI_Comm_rank");
  CheckMpi(MPI_Comm_size(host, &local_size_), "MPI_Comm_size");
  CheckMpi(MPI_Comm_free(&host), "MPI_Comm_free");
}

void Runtime::CatchStopSignals() {
  MaskStopSignals(SIG_BLOCK);
  sem_init(&signal_state.told_to_end, 0, 0);
  struct sigaction stop = {};
  stop.sa_handler = OnStopSignal;
  stop.sa_flags = SA_RESTART;  // files are read and written on
  for (int signal : kStopSignals) sigaction(signal, &stop, nullptr);
  speaker_ = std::jthread([this](const std::stop_token& closing) { SpeakWhenToldToEnd(closing); });
}

bool Runtime::stop_requested() const { return signal_state.stop; }

void Runtime::SetTimeout(double seconds) {
  timeout_seconds_ = seconds;
  ApplyWaitPolicy();
}

void Runtime::SetPlaces(std::function<std::string(int rank)> place_of) {
  place_of_ = std::move(place_of);
  ApplyWaitPolicy();
}

std::string Runtime::Name(int rank) const { return NameOf(rank, hosts_, place_of_); }

// mpirun kills a second after SIGTERM. A thread of its own speaks, since MPI may block the rank for
// that second: when a connection breaks, it reports that to mpirun, which sleeps before it kills.
void Runtime::SpeakWhenToldToEnd(const std::stop_token& closing) const {
  MaskStopSignals(SIG_UNBLOCK);
  while (sem_wait(&signal_state.told_to_end) != 0) continue;  // interrupted
  while (!closing.stop_requested() && !failing_) {
    const std::string wait = transport_->WaitInProgress(0.25);
    if (!wait.empty()) {
      const std::string line = absl::StrCat(wait, " when it was told to end\n");
      return WriteToStderr(line.data(), line.size());
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

void Runtime::ApplyWaitPolicy() {
  std::strncpy(signal_state.self, Name(rank()).c_str(), sizeof(signal_state.self) - 1);
  transport_->SetWaitPolicy({.timeout_seconds = timeout_seconds_,
                             .name_of = [hosts = hosts_, place_of = place_of_](int rank) {
                               return NameOf(rank, hosts, place_of);
                             }});
}

void Runtime::Fail(absl::string_view paragraph) {
  while (failing_.exchange(true)) pause();  // another thread is ending the job already
  const std::string self = Name(rank());
  absl::ConsumePrefix(&paragraph, absl::StrCat(self, " "));  // a wait that names its own rank
  const std::string text = absl::StrCat(self, ": ", paragraph, "\n");
  WriteToStderr(text.data(), text.size());
  // If mpirun is gone, MPI_Abort may wait for it for ever.
  signal(SIGALRM, SIG_DFL);
  alarm(10);
  if (size() > 1) MPI_Abort(MPI_COMM_WORLD, 1);
  _exit(1);
}

}  // namespace twinstream
