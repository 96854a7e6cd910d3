// Captures, and the graphs that come of them, as CUDA keeps them: pieces of work, its nodes, and
// for each of them the nodes that it waits for. Under the lock of TheRuntime().
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <thread>
#include <vector>

#include "core/cuda/emulated/stream_state.h"

namespace twinstream::gpu {

struct Graph {
  struct Node {
    Advance advance;
    size_t branch = 0;  // 0: of the stream that the graph is launched on; others go on beside it
    CapturedPoint after;
  };
  std::vector<Node> nodes;  // each after those that it waits for
  size_t branches = 1;
  CapturedPoint end;  // what comes after the graph waits for these
};

// Of the thread that makes it. Until End each of its streams is taken into it; afterwards it is
// what their events were recorded in.
class Capture {
 public:
  // The first of its streams. The runtime keeps it for ever.
  static void Begin(CUstream_st& stream);

  // A node.
  void Add(const CUstream_st& stream, Advance advance);
  // Where the stream is.
  cudaError_t Record(const CUstream_st& stream, CapturedPoint* point) const;
  // Later work of the stream waits for the point; a stream that is in no capture joins this one.
  cudaError_t Wait(CUstream_st& stream, const CapturedPoint& point);
  // From now on it is lost. Returns the error.
  cudaError_t Break(cudaError_t error);
  bool is_broken() const { return is_broken_; }
  // Leaves its streams. The graph is of use where this returns cudaSuccess.
  cudaError_t End(Graph* graph);

 private:
  void CheckThread() const;
  void Take(CUstream_st& stream);
  bool IsJoined() const;

  const std::thread::id thread_ = std::this_thread::get_id();
  bool is_open_ = true, is_broken_ = false;
  std::vector<CUstream_st*> streams_;   // by branch
  std::vector<CapturedPoint> reached_;  // by branch: what its next node waits for
  std::vector<Graph::Node> nodes_;
};

}  // namespace twinstream::gpu
