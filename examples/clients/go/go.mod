module consumer

go 1.21
