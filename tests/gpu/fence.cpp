// An allocator for PyTorch. Each block ends where its mapping ends, so that an access behind it is a fault.
// https://docs.pytorch.org/docs/stable/notes/cuda.html#using-custom-memory-allocators-for-cuda

#include <cuda.h>
#include <sys/types.h>

#include <mutex>
#include <stdexcept>
#include <string>
#include <unordered_map>

namespace {
constexpr size_t page = 2 << 20;  // bytes that one mapping has at least
constexpr size_t alignment = 16;  // bytes, as cuSPARSELt asks for

struct Block {
    CUdeviceptr reserved;
    size_t mapped;
    CUmemGenericAllocationHandle memory;
};
std::unordered_map<CUdeviceptr, Block> blocks;
std::mutex guard;

size_t up(size_t size, size_t multiple) { return (size + multiple - 1) / multiple * multiple; }

void check(CUresult result) {
    if (result != CUDA_SUCCESS) throw std::runtime_error("fence: error " + std::to_string(result));
}
}  // namespace

extern "C" void* fence_malloc(ssize_t size, int device, void*) {
    if (size == 0) return nullptr;
    Block block{.mapped = up(size, page)};
    CUmemAllocationProp property{.type = CU_MEM_ALLOCATION_TYPE_PINNED};
    property.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
    CUmemAccessDesc access{property.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    check(cuMemAddressReserve(&block.reserved, block.mapped + page, page, 0, 0));
    check(cuMemCreate(&block.memory, block.mapped, &property, 0));
    check(cuMemMap(block.reserved, block.mapped, 0, block.memory, 0));
    check(cuMemSetAccess(block.reserved, block.mapped, &access, 1));
    CUdeviceptr start = block.reserved + block.mapped - up(size, alignment);
    std::lock_guard<std::mutex> hold(guard);
    blocks[start] = block;
    return reinterpret_cast<void*>(start);
}

extern "C" void fence_free(void* start, ssize_t, int, void*) {
    std::lock_guard<std::mutex> hold(guard);
    auto found = blocks.find(reinterpret_cast<CUdeviceptr>(start));
    if (found == blocks.end() || cuCtxSynchronize() != CUDA_SUCCESS) return;  // after a fault nothing can be freed
    Block block = found->second;
    blocks.erase(found);
    check(cuMemUnmap(block.reserved, block.mapped));
    check(cuMemRelease(block.memory));
    check(cuMemAddressFree(block.reserved, block.mapped + page));
}
