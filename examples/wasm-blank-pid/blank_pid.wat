;; What src/bin/blank_pid.rs does, in text form: packets of PID 0x101 become null packets.
(module
  ;; 512 KiB: blocks lie behind the first kilobyte and have at most 256 KiB.
  (memory (export "memory") 8)
  (func (export "alloc") (param $length i32) (result i32)
    (i32.const 1024))
  (func (export "transform") (param $place i32) (param $length i32) (param $first i64) (result i32)
    (local $end i32)
    (local.set $end (i32.add (local.get $place) (local.get $length)))
    (block $done
      (loop $next
        (br_if $done (i32.ge_u (local.get $place) (local.get $end)))
        (if (i32.eq
              (i32.or
                (i32.shl (i32.and (i32.load8_u offset=1 (local.get $place)) (i32.const 0x1f)) (i32.const 8))
                (i32.load8_u offset=2 (local.get $place)))
              (i32.const 0x101))
          (then
            (memory.fill (local.get $place) (i32.const 0xff) (i32.const 188))
            ;; 47 1f ff 10
            (i32.store (local.get $place) (i32.const 0x10ff1f47))))
        (local.set $place (i32.add (local.get $place) (i32.const 188)))
        (br $next)))
    (local.get $length)))
