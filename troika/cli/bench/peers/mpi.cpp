// MPI_Allreduce in place on MPI_COMM_WORLD.
#define OMPI_SKIP_MPICXX 1
#include <mpi.h>

#include <exception>
#include <string>

#include "troika/base/error.h"
#include "troika/cli/bench/peers/peer.h"

namespace troika::cli::bench::mpi {

namespace {

class MpiPeer : public Peer {
 public:
  explicit MpiPeer(const comm::Group& control) {
    int initialised = 0;
    MPI_Initialized(&initialised);
    if (!initialised) {
      // The level of a plain MPI program: higher levels make MPI take locks.
      int provided = 0;
      MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
      finalises_ = true;
    }
    int size = 0;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size != control.size()) {
      throw Error("bench", ErrorKind::usage,
                  {.what = "MPI and the launcher disagree on the number of ranks",
                   .got = std::to_string(size) + " from MPI",
                   .expected = std::to_string(control.size()),
                   .hint = "is the mpirun in PATH the one of the MPI that Troika was built with?"});
    }
  }
  // After an error, MPI_Finalize would wait for ranks that never call it; without it, mpirun ends
  // the job.
  ~MpiPeer() override {
    if (finalises_ && std::uncaught_exceptions() == 0) MPI_Finalize();
  }
  MpiPeer(const MpiPeer&) = delete;
  MpiPeer& operator=(const MpiPeer&) = delete;

  // Returns "Open MPI v4.1.4" from text that continues with build details.
  std::string version() const override {
    char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int length = 0;
    MPI_Get_library_version(text, &length);
    const std::string all(text, static_cast<size_t>(length));
    return all.substr(0, all.find_first_of(",\n"));
  }

  void all_reduce(at::Tensor& tensor) override {
    MPI_Allreduce(MPI_IN_PLACE, tensor.data_ptr(), static_cast<int>(tensor.numel()), MPI_FLOAT,
                  MPI_SUM, MPI_COMM_WORLD);
  }

 private:
  bool finalises_ = false;
};

}  // namespace

std::string why_unavailable() {
  return {};
}

std::unique_ptr<Peer> make(const comm::Group& control) {
  return std::make_unique<MpiPeer>(control);
}

}  // namespace troika::cli::bench::mpi
