// start_ranks NODES RANKS PROGRAM ARGS...: starts PROGRAM as RANKS ranks on each of NODES nodes,
// which are all this machine, with torchrun's variables. Returns the first exit code that is not 0.
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "troika/cluster/discovery/port.h"

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  const int nodes = std::atoi(argv[1]);
  const int per_node = std::atoi(argv[2]);
  const auto set = [](const char* name, int value) {
    ::setenv(name, std::to_string(value).c_str(), 1);
  };
  ::setenv("MASTER_ADDR", "127.0.0.1", 1);
  set("MASTER_PORT", troika::cluster::free_port());
  set("WORLD_SIZE", nodes * per_node);
  set("LOCAL_WORLD_SIZE", per_node);
  for (int rank = 0; rank < nodes * per_node; ++rank) {
    if (::fork() != 0) continue;
    set("RANK", rank);
    set("GROUP_RANK", rank / per_node);
    set("LOCAL_RANK", rank % per_node);
    ::execv(argv[3], argv + 3);
    return 127;
  }
  int code = 0;
  for (int status = 0; ::wait(&status) > 0;) {
    const int ended = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (code == 0) code = ended;
  }
  return code;
}
